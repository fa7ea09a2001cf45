-- One batch of what gateways want of the limits: settlements first, which make room, then renewals, then admissions.
--
-- ARGV[1] is JSON: {id, day, month, day_rest_ms, month_rest_ms, lease_ms, [now_ms], settle, renew, admit}; limits.py
-- writes it and says what each part holds. The answer is JSON: {second, results}. Valkey runs one script at a time, so
-- each admission sees all limits of its tenant and its key as they are, and takes from all of them or from none.
--
-- A subject (a tenant or a key) has a hash and a sorted set:
--   rn ro rl r<second>   requests of the last minute: their sum, the oldest and the last second, and each second's
--   tn to tl t<second>   the same of tokens, reserved ones at first and used ones when they are settled
--   d dn m mn            a day and a month (numbers), and their tokens, reserved and used
--   :held                a lease per request that runs, by when it ends: request:tokens:day:month, 0 for no day's

local PREFIX = 'steerguard:limits:'
-- A second's amount goes when the last moment of that second is a minute ago: no 60 s ever hold more than a limit.
local WINDOW_S = 61
local SAID_MS = 20000
local TTL_MS = 2 * 86400 * 1000

local batch = cjson.decode(ARGV[1])

-- A batch that is sent again, because its answer was lost, is answered again and does nothing.
local said_key = PREFIX .. 'said:' .. batch.id
local said = redis.call('GET', said_key)
if said then
  return said
end

local now_ms = batch.now_ms
if not now_ms then
  local time = redis.call('TIME')
  now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
local second = math.floor(now_ms / 1000)

-- What is in the window now, of what a subject's hash says: its sum, its oldest and its last second (none when empty).
local function window(key, kind, sum, oldest, last)
  sum, oldest, last = tonumber(sum) or 0, tonumber(oldest), tonumber(last)
  if not oldest or oldest > second - WINDOW_S then
    return { kind = kind, sum = sum, oldest = oldest, last = last }
  end
  local over = math.min(last, second - WINDOW_S)
  local names = {}
  for at = oldest, over do
    names[#names + 1] = kind .. at
  end
  for _, amount in ipairs(redis.call('HMGET', key, unpack(names))) do
    sum = sum - (tonumber(amount) or 0)
  end
  redis.call('HDEL', key, unpack(names))
  if over == last then
    redis.call('HDEL', key, kind .. 'n', kind .. 'o', kind .. 'l')
    return { kind = kind, sum = 0 }
  end
  redis.call('HSET', key, kind .. 'n', sum, kind .. 'o', over + 1)
  return { kind = kind, sum = sum, oldest = over + 1, last = last }
end

-- How long until the window has let go of `amount`, in ms.
local function wait_ms(key, seen, amount)
  for at = seen.oldest, seen.last do
    amount = amount - (tonumber(redis.call('HGET', key, seen.kind .. at)) or 0)
    if amount <= 0 then
      return (at + WINDOW_S) * 1000 - now_ms
    end
  end
  return WINDOW_S * 1000
end

local function add(key, seen, amount)
  local kind, at = seen.kind, math.max(second, seen.last or second)
  redis.call('HINCRBY', key, kind .. at, amount)
  redis.call('HSET', key, kind .. 'n', seen.sum + amount, kind .. 'o', seen.oldest or at, kind .. 'l', at)
end

-- Correct what a second holds; nothing where the window has moved past it.
local function correct(key, kind, at, amount)
  if amount ~= 0 and redis.call('HEXISTS', key, kind .. at) == 1 then
    redis.call('HINCRBY', key, kind .. at, amount)
    redis.call('HINCRBY', key, kind .. 'n', amount)
  end
end

-- Correct a day's and a month's tokens, where they are those that are being counted.
local function correct_periods(key, day, month, amount)
  if day == 0 and month == 0 then
    return
  end
  local known = redis.call('HMGET', key, 'd', 'm')
  if day > 0 and tonumber(known[1]) == day then
    redis.call('HINCRBY', key, 'dn', amount)
  end
  if month > 0 and tonumber(known[2]) == month then
    redis.call('HINCRBY', key, 'mn', amount)
  end
end

local function parse(lease)
  local tokens, day, month = string.match(lease, ':(%d+):(%d+):(%d+)$')
  return tonumber(tokens), tonumber(day), tonumber(month)
end

-- What a gateway that died had reserved goes back.
local function drop_ended_leases(key)
  local ended = redis.call('ZRANGEBYSCORE', key .. ':held', '-inf', now_ms)
  for _, lease in ipairs(ended) do
    redis.call('ZREM', key .. ':held', lease)
    local tokens, day, month = parse(lease)
    correct_periods(key, day, month, -tokens)
  end
end

for _, item in ipairs(batch.settle) do
  local name, lease, reserved, used, at, counts_tokens, gives_back = unpack(item)
  local key = PREFIX .. name
  if counts_tokens == 1 then
    correct(key, 't', at, used - reserved)
  end
  if gives_back == 1 then
    correct(key, 'r', at, -1)
  end
  if lease ~= '' then
    local held = redis.call('ZREM', key .. ':held', lease)
    local _, day, month = parse(lease)
    correct_periods(key, day, month, used - held * reserved)
  end
end

for _, item in ipairs(batch.renew) do
  local name, lease = unpack(item)
  local key = PREFIX .. name
  if redis.call('ZADD', key .. ':held', now_ms + batch.lease_ms, lease) == 1 then
    local tokens, day, month = parse(lease)  -- it had ended, and what it had reserved went back
    correct_periods(key, day, month, tokens)
  end
  redis.call('PEXPIRE', key .. ':held', 2 * batch.lease_ms)
end

-- A subject's day's or month's tokens; nil when nobody has said yet what it began with.
local function period(key, kind, number, known, used, begun_with)
  if (tonumber(known) or 0) >= number then
    return tonumber(used)
  end
  if begun_with < 0 then
    return nil
  end
  redis.call('HSET', key, kind, number, kind .. 'n', begun_with)
  redis.call('PEXPIRE', key, TTL_MS)
  return begun_with
end

-- Whether a subject's limits let the request in: a refusal, or nil, and what is left of its minute.
local function examine(index, subject, tokens)
  local name, per_minute, tokens_per_minute, concurrent, per_day, per_month, day_began, month_began = unpack(subject)
  local key = PREFIX .. name
  local worst

  local function check(limit, maximum, used, amount, wait, ...)
    if used + amount <= maximum then
      return
    end
    local ms = -1
    if amount <= maximum then
      ms = type(wait) == 'function' and wait(...) or wait
    end
    if not worst or ms < 0 or (worst[4] >= 0 and ms > worst[4]) then
      worst = { 0, index, limit, ms, used }
    end
  end

  if concurrent > 0 or per_day > 0 or per_month > 0 then
    drop_ended_leases(key)
  end
  local known = redis.call('HMGET', key, 'rn', 'ro', 'rl', 'tn', 'to', 'tl', 'd', 'dn', 'm', 'mn')
  if concurrent > 0 then
    check(3, concurrent, redis.call('ZCARD', key .. ':held'), 1, 1000)
  end
  if per_day > 0 then
    local used = period(key, 'd', batch.day, known[7], known[8], day_began)
    if not used then
      return { 2, index }
    end
    check(4, per_day, used, tokens, batch.day_rest_ms)
  end
  if per_month > 0 then
    local used = period(key, 'm', batch.month, known[9], known[10], month_began)
    if not used then
      return { 2, index }
    end
    check(5, per_month, used, tokens, batch.month_rest_ms)
  end
  local state, left = { key = key }, { -1, 0, -1, 0 }
  if per_minute > 0 then
    local seen = window(key, 'r', known[1], known[2], known[3])
    check(1, per_minute, seen.sum, 1, wait_ms, key, seen, seen.sum + 1 - per_minute)
    left[1] = math.max(0, per_minute - seen.sum)
    left[2] = seen.last and (seen.last + WINDOW_S) * 1000 - now_ms or 0
    state.requests = seen
  end
  if tokens_per_minute > 0 then
    local seen = window(key, 't', known[4], known[5], known[6])
    check(2, tokens_per_minute, seen.sum, tokens, wait_ms, key, seen, seen.sum + tokens - tokens_per_minute)
    left[3] = math.max(0, tokens_per_minute - seen.sum)
    left[4] = seen.last and (seen.last + WINDOW_S) * 1000 - now_ms or 0
    state.tokens = seen
  end
  state.counts_day, state.counts_month = per_day > 0, per_month > 0
  return worst, left, state
end

local function take(state, lease, tokens, left)
  local key = state.key
  if state.requests then
    add(key, state.requests, 1)
    left[1], left[2] = left[1] - 1, (second + WINDOW_S) * 1000 - now_ms
  end
  if state.tokens then
    add(key, state.tokens, tokens)
    left[3], left[4] = left[3] - tokens, (second + WINDOW_S) * 1000 - now_ms
  end
  if state.counts_day then
    redis.call('HINCRBY', key, 'dn', tokens)
  end
  if state.counts_month then
    redis.call('HINCRBY', key, 'mn', tokens)
  end
  if lease ~= '' then
    redis.call('ZADD', key .. ':held', now_ms + batch.lease_ms, lease)
    redis.call('PEXPIRE', key .. ':held', 2 * batch.lease_ms)
  end
  redis.call('PEXPIRE', key, TTL_MS)
end

local function admit(tokens, subjects)
  local worst, left, states = nil, {}, {}
  for index, subject in ipairs(subjects) do
    local refusal
    refusal, left[index], states[index] = examine(index, subject[1], tokens)
    if refusal and refusal[1] == 2 then
      return refusal
    end
    if refusal and (not worst or refusal[4] < 0 or (worst[4] >= 0 and refusal[4] > worst[4])) then
      worst = refusal
    end
  end
  if worst then
    worst[6] = left
    return worst
  end
  for index, subject in ipairs(subjects) do
    take(states[index], subject[2], tokens, left[index])
  end
  return { 1, left }
end

local results = {}
for _, item in ipairs(batch.admit) do
  results[#results + 1] = admit(item[1], item[2])
end
local answer = cjson.encode({ second, results })
redis.call('SET', said_key, answer, 'PX', SAID_MS)
return answer

// One answer as it streams: its text, its state and its figures. Text is only ever written as text
// nodes, so nothing a model says can become markup. Deltas are collected and written once per
// animation frame; each line is a block, so a frame lays out one line and not the whole answer (at
// 20,000 tokens that is milliseconds against a stalled page).

const AT_BOTTOM_PX = 32;
const LIVE_FIGURES_MS = 250;
const STATES = {
  idle: "",
  waiting: "Waiting for the first token",
  streaming: "Answering",
  done: "",
  cut: "Token limit",
  stopped: "Stopped",
  error: "",
};

const tokenCount = new Intl.NumberFormat();

function milliseconds(value) {
  return value >= 10_000 ? `${(value / 1000).toFixed(1)} s` : `${Math.round(value)} ms`;
}

export class AnswerColumn {
  #root;
  #scroll;
  #text;
  #error;
  #metrics = {};
  #pending = "";
  #frame = 0;
  #askedAt = 0;
  #firstAt = 0;
  #figuresAt = 0;
  #deltas = 0;

  constructor(root) {
    this.#root = root;
    this.#scroll = root.querySelector(".answer__scroll");
    this.#text = root.querySelector("[data-answer]");
    this.#error = root.querySelector(".answer__error");
    for (const cell of root.querySelectorAll("[data-metric]")) this.#metrics[cell.dataset.metric] = cell;
  }

  get state() {
    return this.#root.dataset.state;
  }

  get running() {
    return this.state === "waiting" || this.state === "streaming";
  }

  // The answer as the model wrote it, line breaks included.
  get text() {
    return Array.from(this.#text.children, (line) => line.textContent).join("\n") + this.#pending;
  }

  set title(text) {
    this.#root.querySelector("h2").textContent = text;
  }

  set note(text) {
    this.#root.querySelector(".answer__note").textContent = text;
  }

  clear() {
    this.#empty();
    this.#setState("idle");
  }

  wait() {
    this.#empty();
    this.#askedAt = performance.now();
    this.#setState("waiting");
  }

  // The server took the question: who answers is known, the first token is not.
  start({ revision, engine, dose }) {
    this.#show("revision", revision?.split("@").at(-1)); // "acme/support@3"
    this.#show("engine", engine);
    this.#showDose(dose);
  }

  append(text) {
    const now = performance.now();
    if (this.#deltas++ === 0) {
      this.#firstAt = now;
      this.#show("ttft", milliseconds(now - this.#askedAt));
      this.#setState("streaming");
    }
    this.#pending += text;
    this.#frame ||= requestAnimationFrame(() => this.#flush());
    if (now - this.#figuresAt > LIVE_FIGURES_MS) {
      this.#figuresAt = now;
      this.#show("tokens", tokenCount.format(this.#deltas));
      if (this.#deltas > 4) this.#showSpeed(((this.#deltas - 1) * 1000) / (now - this.#firstAt));
    }
  }

  // The server's own figures replace those counted here.
  finish({ usage, ttft_ms: ttft, tokens_per_s: speed, finish_reason: reason, stopped, dose }) {
    this.#flush();
    const tokens = usage?.completion_tokens;
    if (tokens != null) this.#show("tokens", tokenCount.format(tokens));
    else if (this.#deltas) this.#show("tokens", tokenCount.format(this.#deltas));
    if (ttft != null) this.#show("ttft", milliseconds(ttft));
    if (speed != null) this.#showSpeed(speed);
    if (dose != null) this.#showDose(dose);
    this.#setState(stopped ? "stopped" : reason === "length" ? "cut" : "done");
  }

  fail(message, advice) {
    this.#flush();
    this.#error.querySelector("[data-error-message]").textContent = message;
    this.#error.querySelector("[data-error-advice]").textContent = advice ?? "";
    this.#error.hidden = false;
    this.#setState("error");
    this.#scroll.scrollTop = this.#scroll.scrollHeight;
  }

  // "84 tokens, first after 120 ms", for those who hear the page.
  get summary() {
    return `${this.#metrics.tokens.textContent} tokens, first after ${this.#metrics.ttft.textContent}`;
  }

  #empty() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#pending = "";
    this.#deltas = 0;
    this.#figuresAt = 0;
    this.#text.replaceChildren();
    this.#error.hidden = true;
    for (const name of Object.keys(this.#metrics)) this.#show(name, null);
  }

  #flush() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    if (!this.#pending) return;
    const { scrollTop, scrollHeight, clientHeight } = this.#scroll;
    const follow = scrollHeight - scrollTop - clientHeight < AT_BOTTOM_PX;
    const [rest, ...lines] = this.#pending.split("\n");
    this.#pending = "";
    (this.#text.lastElementChild ?? this.#newLine()).append(rest);
    for (const line of lines) {
      // Without it an empty line would be missing when the answer is selected and copied.
      const before = this.#text.lastElementChild;
      if (!before.textContent) before.append(document.createElement("br"));
      this.#newLine().append(line);
    }
    if (follow) this.#scroll.scrollTop = this.#scroll.scrollHeight;
  }

  #newLine() {
    const line = document.createElement("div");
    line.className = "answer__line";
    this.#text.append(line);
    return line;
  }

  #setState(state) {
    this.#root.dataset.state = state;
    this.#root.querySelector(".answer__state").textContent = STATES[state];
  }

  #showSpeed(tokensPerSecond) {
    this.#show("speed", `${tokensPerSecond.toFixed(1)} tok/s`);
  }

  #showDose(dose) {
    this.#show("dose", dose == null ? null : dose.toFixed(2));
  }

  #show(metric, text) {
    const cell = this.#metrics[metric];
    cell.textContent = text ?? "–";
    cell.title = text ?? "";
  }
}

// The playground: one message, answered side by side by a persona and by the bare model. This file
// holds what is going on (who is chosen, what runs, what the engine does) and wires the parts together.

import { AnswerColumn } from "./answer_column.js";
import { copy } from "./clipboard.js";
import { LiveSocket } from "./live_socket.js";
import { PersonaPicker } from "./persona_picker.js";
import { snippets } from "./snippets.js";

const AS_PUBLISHED = 1;
const SETTLE_MS = 250; // a slider moved by keys "lets go" when it rests this long
const BOTH = ["persona", "base"];

const element = (id) => document.getElementById(id);
const page = JSON.parse(element("page-data").textContent);
const personas = new Map(page.personas.map((persona) => [persona.model, persona]));
const columns = Object.fromEntries(
  BOTH.map((key) => [key, new AnswerColumn(document.querySelector(`[data-column=${key}]`))]),
);

const form = element("ask-form");
const prompt = element("prompt");
const strength = element("strength");
const seed = element("seed");
const maxTokens = element("max-tokens");
const askButton = element("ask");
const stopButton = element("stop");
const snippetDialog = element("snippet");

let persona = null;
let connection = "connecting";
let engines = null;
let run = null; // {id, question, open: Set of columns still answering}
let answered = false; // whether the chosen persona has been asked
let settleTimer = 0;

const announce = (text) => {
  element("announcer").textContent = text;
};

// --- the chosen persona ----------------------------------------------------------------------

function chip(...parts) {
  const item = document.createElement("li");
  item.className = "chip";
  item.append(...parts);
  return item;
}

function strong(text) {
  const bold = document.createElement("b");
  bold.textContent = text;
  return bold;
}

const POSITIONS = { all: "all tokens", prompt: "prompt only", response: "response only" };

function vectorChip(component) {
  const alpha = document.createElement("span");
  alpha.className = "chip__alpha";
  const layers = component.layers.length;
  const where = layers ? `${layers > 1 ? "layers" : "layer"} ${component.layers.join(", ")}` : "all layers";
  const item = chip(strong(component.skill), where, alpha, POSITIONS[component.positions]);
  item.classList.add("chip--vector");
  return { item, alpha, component };
}

let vectorChips = [];

function showAlphas() {
  for (const { alpha, component } of vectorChips) {
    const now = component.alpha * Number(strength.value);
    const published = `α ${component.alpha.toFixed(2)}`;
    alpha.textContent =
      Number(strength.value) === AS_PUBLISHED ? published : `${published} → ${now.toFixed(2)}`;
  }
}

function showBlend() {
  vectorChips = persona.blend.map(vectorChip);
  const chips = vectorChips.map(({ item }) => item);
  if (!persona.blend.length) chips.push(chip("no steering vectors"));
  if (persona.system_prompt) {
    const item = chip("system prompt");
    item.title = persona.system_prompt;
    chips.push(item);
  }
  if (persona.output_format) chips.push(chip("format ", strong(persona.output_format)));
  element("persona-blend").replaceChildren(...chips);
  showAlphas();
}

function showSamples() {
  const buttons = persona.samples.map((text) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "chip";
    button.textContent = text;
    button.addEventListener("click", () => {
      prompt.value = text;
      ask();
    });
    return button;
  });
  element("samples").replaceChildren(...buttons);
}

function choose(model) {
  stop();
  persona = personas.get(model);
  history.replaceState(null, "", `?persona=${model}`);
  document.title = `${persona.name} · Playground · SteerGuard`;
  element("persona-name").textContent = persona.name;
  element("persona-revision").textContent = persona.revision ? `revision ${persona.revision}` : "not published";
  element("persona-model").textContent = persona.model;
  element("persona-about").textContent = persona.description;
  maxTokens.value = Math.min(persona.max_tokens ?? page.default_max_tokens, Number(maxTokens.max));
  columns.persona.title = persona.name;
  columns.persona.clear();
  columns.persona.note = "";
  answered = false;
  strength.value = AS_PUBLISHED;
  strength.disabled = persona.blend.length === 0;
  showBlend();
  showSamples();
  showStrength();
  showReadiness();
}

function showStrength() {
  const value = Number(strength.value);
  const said = `${value.toFixed(1)}×`;
  element("strength-value").textContent = said;
  strength.setAttribute("aria-valuetext", value === AS_PUBLISHED ? `${said}, as published` : said);
  strength.parentElement.style.setProperty("--fill", `${(value / Number(strength.max)) * 100}%`);
  showAlphas();
}

// --- asking ----------------------------------------------------------------------------------

// Why the persona can't be asked now, in words, or "".
function obstacle() {
  if (connection === "signed-out") return "You are signed out. Reload this page to sign in again.";
  if (connection === "too-many") return "Too many playgrounds are open. Close one, then reload this page.";
  if (connection !== "open") return "Connecting to the server. What you typed stays here.";
  if (!persona.revision) return `${persona.name} is a draft. It answers here once a revision is published.`;
  if (!engines) return "Asking the engine whether it is ready.";
  if (!engines.length) return "No engine is registered. An operator adds one under Administration, Engines.";
  if (!engines.some((engine) => engine.status === "ready"))
    return engines.some((engine) => engine.status === "starting" || engine.status === "unknown")
      ? "The engine isn’t ready yet. This button turns on by itself."
      : "No engine can answer: see its state above. This button turns on by itself.";
  return "";
}

function showReadiness() {
  const reason = obstacle();
  element("ask-reason").textContent = reason;
  // What is over in a moment isn't worth moving the answers for.
  const passing = connection === "connecting" || (connection === "open" && !engines);
  element("ask-reason").classList.toggle("visually-hidden", passing);
  askButton.setAttribute("aria-disabled", String(reason !== ""));
  stopButton.setAttribute("aria-disabled", String(run === null));
  element("ask-label").textContent = answered ? "Run again" : "Ask";
}

// The input's number within its own bounds; the input shows what is used.
function bounded(input, fallback) {
  const value = Math.round(Number(input.value));
  const given = input.value.trim() === "" || Number.isNaN(value) ? fallback : value;
  input.value = Math.min(Number(input.max), Math.max(Number(input.min), given));
  return Number(input.value);
}

// Always both columns together. An engine's rounding depends on the shape of the batch, so an answer from
// another batch may read differently though nothing was steered, as at strength 0.
function ask() {
  clearTimeout(settleTimer);
  if (obstacle()) return;
  if (!prompt.value.trim()) {
    prompt.focus();
    announce("Type a message first.");
    return;
  }
  const id = crypto.randomUUID?.() ?? `${Date.now()}-${Math.random().toString(16).slice(2)}`;
  const sent = socket.send({
    type: "ask",
    id,
    persona: persona.model,
    messages: [{ role: "user", content: prompt.value }],
    strength: Number(strength.value),
    columns: BOTH,
    max_tokens: bounded(maxTokens, page.default_max_tokens),
    seed: bounded(seed, 0),
  });
  if (!sent) return;
  run = { id, open: new Set(BOTH) };
  for (const key of BOTH) columns[key].wait();
  answered = true;
  const at = strength.disabled ? "" : `at ${Number(strength.value).toFixed(1)}×`;
  columns.persona.note = at;
  announce(`Both columns are answering${at && `, the persona ${at}`}.`);
  showReadiness();
}

function askAtNewStrength() {
  if (answered) ask();
}

function stop() {
  clearTimeout(settleTimer);
  if (!run) return;
  socket.send({ type: "stop", id: run.id });
  for (const key of run.open) columns[key].finish({ stopped: true });
  run = null;
  announce("Stopped.");
  showReadiness();
}

function close(key) {
  run.open.delete(key);
  if (run.open.size) return;
  run = null;
  announce(
    BOTH.filter((name) => ["done", "cut"].includes(columns[name].state))
      .map((name) => `${name === "base" ? "Unsteered" : persona.name}: ${columns[name].summary}.`)
      .join(" "),
  );
  showReadiness();
}

// --- what the server says --------------------------------------------------------------------

const ENGINE_STATUS = {
  unknown: "not looked at yet",
  starting: "starting",
  ready: "ready",
  unreachable: "can’t be reached",
  incompatible: "can’t serve these personas",
};

function showEngines() {
  const states = { ready: "ready", starting: "starting", unknown: "starting" };
  const best = ["ready", "starting", "unknown"].find((status) =>
    engines.some((engine) => engine.status === status),
  );
  element("engines").dataset.state = states[best] ?? "bad";
  element("engines-text").textContent = engines.length
    ? engines.map(({ name, status, detail }) => `Engine ${name}: ${detail || ENGINE_STATUS[status]}`).join("  ·  ")
    : "No engine is registered";
  showReadiness();
}

// Another revision than the page was loaded with: published or rolled back meanwhile.
function noticeRevision(name) {
  const number = Number(name.split("@").at(-1));
  if (number !== persona.revision)
    element("persona-revision").textContent = `revision ${number} now, reload to see its blend`;
}

function receive(message) {
  if (message.type === "engines") {
    engines = message.engines;
    showEngines();
    return;
  }
  if (message.type === "error" && !message.column) {
    element("ask-reason").textContent = [message.message, message.advice].filter(Boolean).join(" ");
    if (!run || (message.id && message.id !== run.id)) return;
    for (const key of [...run.open]) {
      columns[key].fail(message.message, message.advice);
      close(key);
    }
    return;
  }
  if (!run || message.id !== run.id || !run.open.has(message.column)) return; // of a question given up
  const column = columns[message.column];
  if (message.type === "delta") column.append(message.text);
  else if (message.type === "start") {
    column.start(message);
    if (message.column === "persona") noticeRevision(message.revision);
  }
  else if (message.type === "done") {
    column.finish(message);
    close(message.column);
  } else if (message.type === "error") {
    column.fail(message.message, message.advice);
    announce(message.message);
    close(message.column);
  }
}

const CONNECTION_TEXT = {
  connecting: "Connecting…",
  open: "",
  reconnecting: "Connection lost, reconnecting…",
  "signed-out": "Signed out",
  "too-many": "Too many open playgrounds",
};

function onConnection(state) {
  connection = state;
  element("connection").textContent = CONNECTION_TEXT[state];
  if (state !== "open" && run) {
    const { open } = run;
    run = null;
    for (const key of open)
      columns[key].fail("The connection dropped.", "It comes back by itself; then run this again.");
  }
  if (persona) showReadiness();
}

// --- wiring ----------------------------------------------------------------------------------

const picker = new PersonaPicker({
  searchTexts(model) {
    const { name, slug, description, tenant_name: tenant, blend } = personas.get(model);
    return [`${name} ${slug}`, [name, model, description, tenant, ...blend.map(({ skill }) => skill)].join(" ")];
  },
  onPick(model) {
    if (model !== persona.model) choose(model);
    prompt.focus();
  },
});

const wanted = new URLSearchParams(location.search).get("persona");
const first = personas.get(wanted) ?? page.personas.find(({ revision }) => revision) ?? page.personas[0];

const socket = new LiveSocket(page.socket_path, { onMessage: receive, onState: onConnection });
choose(first.model);
picker.select(first.model);

form.addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
stopButton.addEventListener("click", stop);
addEventListener("keydown", (event) => {
  if (snippetDialog.open || event.isComposing) return;
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    ask();
  } else if (event.key === "Escape" && run && !event.defaultPrevented) stop();
});

strength.addEventListener("input", showStrength);
strength.addEventListener("change", () => {
  clearTimeout(settleTimer);
  settleTimer = setTimeout(askAtNewStrength, SETTLE_MS);
});

element("snippet-button").addEventListener("click", () => {
  element("snippet-tenant").textContent = persona.tenant_name;
  const code = snippets({ model: persona.model, message: prompt.value });
  for (const [language, text] of Object.entries(code)) element(`snippet-${language}`).textContent = text;
  snippetDialog.showModal();
});
snippetDialog.addEventListener("click", (event) => {
  if (event.target === snippetDialog) snippetDialog.close(); // the backdrop
});
for (const button of document.querySelectorAll("[data-copy]"))
  button.addEventListener("click", () => copy(element(button.dataset.copy).textContent, button, announce));
for (const key of BOTH) {
  const button = document.querySelector(`[data-column=${key}] .answer__copy`);
  button.addEventListener("click", () => copy(columns[key].text, button, announce));
}

const modKey = /Mac|iP(hone|ad)/.test(navigator.platform) ? "⌘" : "Ctrl ";
for (const key of document.querySelectorAll("[data-mod-key]")) key.textContent = modKey + key.dataset.modKey;

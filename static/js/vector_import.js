// The import page: sends the file to be understood, shows how it was, and sends it again to be stored.

const page = JSON.parse(document.getElementById("page-data").textContent);
const form = document.getElementById("import-form");
const saveForm = document.getElementById("save-form");
const preview = document.getElementById("preview");
const file = form.elements.file;
const OPEN_FIELDS = new Set(["format", "layer", "index", "rows", "zero_rows"]);

const states = { import: document.getElementById("import-state"), save: document.getElementById("save-state") };
let understood = 0; // counts the questions, so that a late answer to an old one is dropped

function fieldOf(name) {
  return document.querySelector(`[data-field="${CSS.escape(name)}"]`);
}

function clearProblems() {
  for (const problem of document.querySelectorAll(".field__problem")) {
    problem.hidden = true;
    problem.textContent = "";
  }
  for (const control of document.querySelectorAll("[aria-invalid]")) control.removeAttribute("aria-invalid");
}

// Shows each problem at its field; those of no field become the state's text.
function showProblems(problems, state) {
  const rest = [];
  let first = null;
  for (const { field, text } of problems) {
    const place = fieldOf(field);
    if (!place) {
      rest.push(text);
      continue;
    }
    const problem = place.querySelector(".field__problem");
    problem.textContent = text;
    problem.hidden = false;
    const control = place.querySelector("input, select");
    control.setAttribute("aria-invalid", "true");
    if (OPEN_FIELDS.has(field)) document.getElementById("conventions").open = true;
    first ??= control;
  }
  state.textContent = rest.join(" ");
  first?.focus();
}

function wording(error) {
  if (error.found.startsWith("nothing, and ")) return `Say ${error.expected}: ${error.found.slice(13)}.`;
  return `Expected ${error.expected}, found ${error.found}.`;
}

function problemsOf(body, status) {
  if (body?.errors?.length) return body.errors.map((error) => ({ field: error.field, text: wording(error) }));
  return [{ field: "", text: body?.detail ?? `The server answered ${status}.` }];
}

function formData(withSaid) {
  const data = new FormData();
  data.append("file", file.files[0]);
  const said = withSaid ? [...new FormData(saveForm)] : [];
  for (const [name, value] of [...new FormData(form), ...said]) {
    const text = typeof value === "string" ? value.trim() : "";
    if (text && name !== "csrfmiddlewaretoken") data.append(name, text);
  }
  return data;
}

async function post(url, data) {
  const headers = { "X-CSRFToken": form.elements.csrfmiddlewaretoken.value };
  const response = await fetch(url, { method: "POST", body: data, headers });
  const body = await response.json().catch(() => null);
  return { ok: response.ok && body !== null, status: response.status, body };
}

function busy(button, isBusy) {
  button.setAttribute("aria-disabled", String(isBusy));
}

function show(said) {
  for (const place of preview.querySelectorAll("[data-preview]")) {
    const name = place.dataset.preview;
    if (name === "blocks") place.textContent = `${said.blocks.join(", ")} (${said.blocks.length} in all)`;
    else if (name === "norms") place.textContent = normsText(said);
    else if (name === "format") place.textContent = titleOf(said.format);
    else place.textContent = said[name];
  }
  const warnings = [...said.warnings];
  if (said.is_stored) warnings.push("A vector of these numbers is stored already: storing changes what is said about it.");
  document.getElementById("preview-warnings").replaceChildren(
    ...warnings.map((text) => {
      const warning = document.createElement("p");
      warning.className = "notice notice--warn";
      warning.textContent = text;
      return warning;
    }),
  );
  if (!saveForm.elements.name.value) saveForm.elements.name.value = slug(said.name);
  preview.hidden = false;
  preview.focus();
}

function titleOf(format) {
  const option = [...form.elements.format.options].find(({ value }) => value === format);
  return option ? option.textContent : format;
}

function normsText(said) {
  const norms = Object.values(said.norms);
  if (said.norm === "unit") return "1 at every block (unit vectors)";
  const [low, high] = [Math.min(...norms), Math.max(...norms)].map((norm) => Number(norm.toPrecision(4)));
  return low === high ? `${low}` : `${low} to ${high}`;
}

function slug(name) {
  return name.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 63);
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = document.getElementById("preview-button");
  if (button.getAttribute("aria-disabled") === "true") return;
  clearProblems();
  preview.hidden = true;
  if (!file.files.length) return showProblems([{ field: "file", text: "Choose a file." }], states.import);
  if (file.files[0].size > page.max_bytes) {
    return showProblems([{ field: "file", text: `At most ${page.max_bytes} bytes are taken.` }], states.import);
  }
  const question = ++understood;
  busy(button, true);
  states.import.textContent = "Reading the file…";
  try {
    const answer = await post(page.preview_url, formData(false));
    if (question !== understood) return;
    states.import.textContent = "";
    if (answer.ok) show(answer.body);
    else showProblems(problemsOf(answer.body, answer.status), states.import);
  } catch {
    if (question === understood) states.import.textContent = "The server can’t be reached. Try again.";
  } finally {
    busy(button, false);
  }
});

saveForm.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = document.getElementById("save-button");
  if (button.getAttribute("aria-disabled") === "true") return;
  clearProblems();
  busy(button, true);
  states.save.textContent = "Storing…";
  try {
    const answer = await post(page.upload_url, formData(true));
    if (answer.ok) {
      location.assign(page.page_url.replace(/0{64}/, answer.body.digest));
      return;
    }
    showProblems(problemsOf(answer.body, answer.status), states.save);
  } catch {
    states.save.textContent = "The server can’t be reached. Try again.";
  }
  busy(button, false);
});

// What was understood holds for what was said; whoever changes that has the file read again.
form.addEventListener("input", () => {
  understood += 1;
  preview.hidden = true;
});

// A model that is known brings its shape.
form.elements.base_model.addEventListener("change", () => {
  const model = page.models.find(({ name }) => name === form.elements.base_model.value.trim());
  if (!model) return;
  form.elements.hidden_size.value = model.hidden_size;
  form.elements.num_layers.value = model.num_layers ?? "";
});

// The plan follows the inputs: the page that the form would lead to is fetched, and its answers are put in place.
// Without this script the button does the same.

const WAIT_MS = 250;
const form = document.getElementById("plan-form");
const status = document.getElementById("plan-status");
let timer = 0;
let running = null;

// Only what differs from its default stands in the address.
function address() {
  const query = new URLSearchParams();
  for (const [name, value] of new FormData(form)) {
    if (value !== form.elements[name].dataset.default) query.set(name, value);
  }
  const text = query.toString();
  return form.getAttribute("action") + (text ? `?${text}` : "");
}

function showErrors(page) {
  for (const field of form.querySelectorAll("[data-field]")) {
    const error = field.querySelector(".field__error");
    if (!error) continue;
    error.textContent = page.getElementById(error.id)?.textContent ?? "";
    const input = field.querySelector(".input");
    if (error.textContent) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  }
}

async function update() {
  running?.abort();
  const mine = (running = new AbortController());
  const to = address();
  const plan = document.getElementById("plan");
  plan.setAttribute("aria-busy", "true");
  try {
    const response = await fetch(to, { signal: mine.signal });
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const next = page.getElementById("plan");
    if (!next) throw new Error(response.redirected ? "you are signed out" : `the server answered ${response.status}`);
    plan.replaceWith(next);
    showErrors(page);
    history.replaceState(null, "", to);
    status.textContent = "planned" in next.dataset ? "Plan updated" : "No plan with these inputs";
  } catch (error) {
    if (error.name === "AbortError") return;
    plan.removeAttribute("aria-busy");
    status.textContent = `The plan could not be updated: ${error.message}. Press Plan to try again.`;
    status.classList.remove("visually-hidden");
    return;
  }
  status.classList.add("visually-hidden");
}

form.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(update, WAIT_MS);
});

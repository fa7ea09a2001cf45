// Copying text, with the outcome shown on the button that asked for it.

const SHOWN_MS = 1600;

async function write(text) {
  // navigator.clipboard exists only on https and localhost; a LAN address over http has the old way.
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  area.setAttribute("readonly", "");
  // Inside an open dialog everything outside is inert, so the helper must be inside it too.
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (!copied) throw new Error("the browser refused to copy");
}

export async function copy(text, button, announce) {
  const use = button.querySelector("use");
  const label = button.querySelector("span");
  const [icons] = use.getAttribute("href").split("#");
  let outcome = "Copied";
  try {
    await write(text);
  } catch {
    outcome = "Not copied: select the text and press Ctrl+C";
  }
  use.setAttribute("href", `${icons}#${outcome === "Copied" ? "check" : "alert"}`);
  if (label) label.textContent = outcome;
  announce(outcome);
  setTimeout(() => {
    use.setAttribute("href", `${icons}#copy`);
    if (label) label.textContent = "Copy";
  }, SHOWN_MS);
}

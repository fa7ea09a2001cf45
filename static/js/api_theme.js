// The API's pages are drawn by libraries of their own, which know neither our tokens nor the reader's choice of a theme.

const systemIsDark = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : systemIsDark.matches;
}

// What a token is in the theme that is shown, as a color that a library can calculate with.
function colorOf(token) {
  const probe = document.createElement("span");
  probe.style.color = `var(--${token})`;
  document.body.append(probe);
  const color = getComputedStyle(probe).color;
  probe.remove();
  return color;
}

// Calls `draw` now, and again when the system's theme changes and nothing else was chosen.
function followTheme(draw) {
  draw();
  systemIsDark.addEventListener("change", draw);
}

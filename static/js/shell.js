// What every page needs: the color theme and, when narrow, the menu.

const THEMES = ["system", "light", "dark"];
const ONE_YEAR_S = 365 * 24 * 3600;

// A cookie, not localStorage: the server writes data-theme into the page, so it never flashes.
function applyTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const age = theme === "system" ? 0 : ONE_YEAR_S;
  const secure = location.protocol === "https:" ? "; Secure" : "";
  document.cookie = `theme=${theme}; Path=/; Max-Age=${age}; SameSite=Lax${secure}`;
}

function describe(toggle) {
  const next = THEMES[(THEMES.indexOf(toggle.dataset.choice) + 1) % THEMES.length];
  const label = `Color theme: ${toggle.dataset.choice}. Switch to ${next}`;
  toggle.setAttribute("aria-label", label);
  toggle.title = label;
  return next;
}

for (const toggle of document.querySelectorAll("[data-theme-toggle]")) {
  describe(toggle);
  toggle.addEventListener("click", () => {
    toggle.dataset.choice = describe(toggle);
    applyTheme(toggle.dataset.choice);
    describe(toggle);
  });
}

const menuButton = document.getElementById("menu-button");
const sidebar = document.getElementById("sidebar");

function showMenu(open) {
  sidebar.toggleAttribute("data-open", open);
  menuButton.setAttribute("aria-expanded", String(open));
}

if (menuButton && sidebar) {
  menuButton.addEventListener("click", () => showMenu(!sidebar.hasAttribute("data-open")));
  addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !sidebar.hasAttribute("data-open")) return;
    showMenu(false);
    menuButton.focus();
  });
  addEventListener("pointerdown", (event) => {
    if (sidebar.contains(event.target) || menuButton.contains(event.target)) return;
    showMenu(false);
  });
}

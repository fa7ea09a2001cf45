// Redoc over the API's own document. Its search wants a worker made of a blob, which the security policy forbids.
const place = document.getElementById("api");

function theme() {
  const text = { primary: colorOf("text"), secondary: colorOf("text-soft") };
  return {
    colors: {
      primary: { main: colorOf("accent") },
      success: { main: colorOf("good") },
      warning: { main: colorOf("warn") },
      error: { main: colorOf("bad") },
      text,
      border: { dark: colorOf("line"), light: colorOf("line") },
      responses: {
        success: { color: colorOf("good"), backgroundColor: colorOf("good-soft"), tabTextColor: "#4cc38a" },
        error: { color: colorOf("bad"), backgroundColor: colorOf("bad-soft"), tabTextColor: "#ff8b82" },
      },
    },
    schema: {
      linesColor: colorOf("accent-line"),
      typeNameColor: text.secondary,
      typeTitleColor: text.secondary,
      requireLabelColor: colorOf("bad"),
      nestedBackground: colorOf("surface-sunken"),
      arrow: { color: text.secondary },
    },
    typography: {
      fontFamily: "var(--font)",
      headings: { fontFamily: "var(--font)" },
      code: { fontFamily: "var(--font-mono)", color: text.primary, backgroundColor: colorOf("surface-active") },
      links: { color: colorOf("accent"), visited: colorOf("accent"), hover: colorOf("accent-strong") },
    },
    sidebar: { backgroundColor: colorOf("surface"), textColor: text.primary, activeTextColor: colorOf("accent") },
    // Its colors of code are for a dark ground.
    rightPanel: { backgroundColor: "#16161b" },
    codeBlock: { backgroundColor: "#0c0c0f" },
  };
}

// Its menu ends with its maker's logo, from elsewhere, for which there is no option. The security policy forbids to
// fetch it, so it is told at once that there is none, and leaves it out.
const { setAttribute } = HTMLImageElement.prototype;

function load(image, url) {
  if (url.startsWith("data:") || new URL(url, location.href).origin === location.origin) {
    setAttribute.call(image, "src", url);
  } else {
    queueMicrotask(() => image.dispatchEvent(new Event("error")));
  }
}

Object.defineProperty(HTMLImageElement.prototype, "src", {
  get() {
    return this.getAttribute("src") ?? "";
  },
  set(url) {
    load(this, url);
  },
});
HTMLImageElement.prototype.setAttribute = function (name, value) {
  if (name === "src") load(this, value);
  else setAttribute.call(this, name, value);
};

followTheme(() => Redoc.init(place.dataset.schema, { disableSearch: true, theme: theme() }, place));

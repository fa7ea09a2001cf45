// The list of personas: a combobox whose listbox is always open when there is room, and fills the
// window when there isn't. Focus stays in the search box; the arrow keys move a highlight, Enter
// picks. Every option is already in the page, so searching is only hiding and sorting: what matches
// by name comes first, in its group and with its group, so that Enter takes what stands on top.

export class PersonaPicker {
  #panel = document.getElementById("picker");
  #search = document.getElementById("picker-search");
  #list = document.getElementById("picker-list");
  #none = document.getElementById("picker-none");
  #opener = document.getElementById("picker-button");
  #groups = Array.from(this.#list.querySelectorAll("[role=group]"));
  #options = Array.from(this.#list.querySelectorAll("[role=option]"));
  #haystacks;
  #active = null;
  #onPick;

  // searchTexts(model) are what a search looks at: the text whose matches come first, then the text of
  // everything. onPick(model) runs when the reader has chosen.
  constructor({ searchTexts, onPick }) {
    this.#onPick = onPick;
    this.#haystacks = new Map(
      this.#options.map((option) => [option, searchTexts(option.dataset.model).map((text) => text.toLowerCase())]),
    );
    this.#search.addEventListener("input", () => this.#filter());
    this.#search.addEventListener("keydown", (event) => this.#onKey(event));
    // Keeps focus in the search box, so that a click into the list doesn't close it when narrow.
    this.#list.addEventListener("mousedown", (event) => event.preventDefault());
    this.#list.addEventListener("click", (event) => {
      const option = event.target.closest("[role=option]");
      if (option) this.#pick(option);
    });
    this.#opener.addEventListener("click", () => this.open());
    document.getElementById("picker-close").addEventListener("click", () => {
      this.#close();
      this.#opener.focus();
    });
    this.#panel.addEventListener("focusout", (event) => {
      if (!this.#panel.contains(event.relatedTarget)) this.#close();
    });
    addEventListener("keydown", (event) => {
      if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey) return;
      event.preventDefault();
      this.open();
    });
  }

  open() {
    this.#panel.dataset.open = "";
    this.#opener.setAttribute("aria-expanded", "true");
    this.#search.focus();
    this.#search.select();
    this.#activate(this.#selected ?? this.#shown[0]);
  }

  // Marks a persona as the chosen one, without telling onPick.
  select(model) {
    for (const option of this.#options) {
      const chosen = option.dataset.model === model;
      option.setAttribute("aria-selected", String(chosen));
      if (chosen) this.#activate(option);
    }
  }

  get #selected() {
    return this.#options.find((option) => option.getAttribute("aria-selected") === "true" && !option.hidden);
  }

  get #shown() {
    return Array.from(this.#list.querySelectorAll("[role=option]:not([hidden])"));
  }

  #close() {
    delete this.#panel.dataset.open;
    this.#opener.setAttribute("aria-expanded", "false");
  }

  #filter() {
    const words = this.#search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const ranks = new Map();
    for (const option of this.#options) {
      const rank = this.#haystacks.get(option).findIndex((text) => words.every((word) => text.includes(word)));
      option.hidden = rank < 0;
      ranks.set(option, option.hidden ? Infinity : rank);
    }
    const byRank = (one, other) => (ranks.get(one) < ranks.get(other) ? -1 : Number(ranks.get(one) > ranks.get(other)));
    for (const group of this.#groups) {
      const options = this.#options.filter((option) => group.contains(option)).sort(byRank);
      group.append(...options);
      const count = options.filter((option) => !option.hidden).length;
      group.hidden = count === 0;
      group.querySelector(".picker__tenant span").textContent = count;
      ranks.set(group, ranks.get(options[0]));
    }
    this.#list.prepend(...[...this.#groups].sort(byRank));
    const shown = this.#shown;
    this.#none.hidden = shown.length > 0;
    this.#activate(shown[0]);
  }

  #onKey(event) {
    const shown = this.#shown;
    const at = shown.indexOf(this.#active);
    const moves = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + 8, PageUp: at - 8 };
    if (event.key in moves) {
      event.preventDefault();
      this.#activate(shown[Math.max(0, Math.min(shown.length - 1, moves[event.key]))]);
    } else if (event.key === "Enter" && !event.isComposing) {
      event.preventDefault();
      if (this.#active) this.#pick(this.#active);
    } else if (event.key === "Escape") {
      event.preventDefault();
      if (this.#search.value) {
        this.#search.value = "";
        this.#filter();
      } else if ("open" in this.#panel.dataset) {
        this.#close();
        this.#opener.focus();
      }
    }
  }

  #pick(option) {
    this.select(option.dataset.model);
    this.#close();
    this.#onPick(option.dataset.model);
  }

  #activate(option) {
    if (this.#active) delete this.#active.dataset.active;
    this.#active = option ?? null;
    if (!option) {
      this.#search.removeAttribute("aria-activedescendant");
      return;
    }
    option.dataset.active = "";
    this.#search.setAttribute("aria-activedescendant", option.id);
    option.scrollIntoView({ block: "nearest" });
  }
}

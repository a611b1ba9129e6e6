// The cases of a job as a list of any length: only the rows in sight exist, and pages are fetched when they come into sight.

import { json } from "./api.js";
import { badge, el, icon, many, number } from "./dom.js";

const ROW = 64; // pixels, as in the style sheet
const PAGE = 100;
const SPARE = 6; // rows beyond the edges
const FILTERS = { all: "", flagged: "&flag=true", errors: "&error=true", unreviewed: "&reviewed=false&error=false" };
const NAMES = { all: "All", flagged: "Flagged", errors: "Errors", unreviewed: "Unreviewed" };

export class CaseList {
  constructor(choose) {
    this.choose = choose;
    this.filter = "all";
    this.sort = "score";
    this.chosen = null; // {id, index in the list}
    this._build();
    this._forget();
  }

  _build() {
    this.filters = Object.keys(FILTERS).map((name) =>
      el("button", {
        type: "button",
        "aria-pressed": String(name === this.filter),
        onclick: () => this.setFilter(name),
        text: NAMES[name],
      }),
    );
    const sorts = { score: "Highest score", index: "Upload order", name: "Name" };
    this.sorter = el(
      "select",
      { "aria-label": "Sort by", onchange: () => this.setSort(this.sorter.value) },
      Object.entries(sorts).map(([value, text]) => el("option", { value, text })),
    );
    this.count = el("p", { class: "count", role: "status" });
    this.space = el("div", { class: "rows", role: "none" });
    this.box = el("div", { class: "case-list", role: "listbox", tabindex: "0", "aria-label": "Cases" }, this.space);
    this.box.addEventListener("scroll", () => this._plan(), { passive: true });
    this.box.addEventListener("keydown", (event) => this._key(event));
    this.sizes = new ResizeObserver(() => this._plan());
    this.sizes.observe(this.box);
    this.element = el(
      "section",
      { class: "list-pane", "aria-label": "Case list" },
      el(
        "div",
        { class: "list-head" },
        el("div", { class: "chips", role: "group", "aria-label": "Show" }, this.filters),
        el("div", { class: "list-line" }, this.count, this.sorter),
      ),
      this.box,
    );
  }

  close() {
    this.sizes.disconnect();
    this.job = null;
  }

  _forget() {
    this.pages = new Map(); // number → items, or a promise of them
    this.rows = new Map(); // index → element
    this.total = null;
    this.space.replaceChildren();
  }

  async open(job) {
    this.job = job;
    this._forget();
    await this._page(0);
    this._draw();
  }

  // The job went on: what is shown is fetched again, without a jump.
  async refresh() {
    const shown = [...this._range()].map((index) => Math.floor(index / PAGE));
    for (const number_ of new Set([0, ...shown])) await this._fetch(number_);
    const place = this.chosen ? this._indexOf(this.chosen.id) : -1;
    if (place >= 0) this.chosen.index = place; // others may have come before it
    this._draw(true);
  }

  async setFilter(name) {
    this.filter = name;
    for (const [i, other] of Object.keys(FILTERS).entries()) this.filters[i].setAttribute("aria-pressed", String(other === name));
    await this._again();
  }

  async setSort(name) {
    this.sort = this.sorter.value = name;
    await this._again();
  }

  async _again() {
    this.box.scrollTop = 0;
    await this.open(this.job);
    if (this.chosen) this.chosen.index = this._indexOf(this.chosen.id);
    this._mark();
  }

  _query(first) {
    return `${this.job.url}/cases?limit=${PAGE}&offset=${first}&sort=${this.sort}${FILTERS[this.filter]}`;
  }

  async _fetch(number_) {
    const { job, filter, sort } = this;
    const found = await json(this._query(number_ * PAGE));
    if (this.job !== job || this.filter !== filter || this.sort !== sort) return;
    this.pages.set(number_, found.items);
    if (this.total === found.total) return;
    this.total = found.total;
    this.space.style.height = `${ROW * found.total}px`;
    this.count.textContent = found.total
      ? many(found.total, "case")
      : this.filter === "all"
        ? "No cases yet"
        : "None of this kind";
  }

  _page(number_) {
    if (!this.pages.has(number_)) {
      const coming = this._fetch(number_).then(() => this._plan());
      this.pages.set(number_, coming);
      coming.catch(() => this.pages.delete(number_));
    }
    return this.pages.get(number_);
  }

  item(index) {
    const page = this.pages.get(Math.floor(index / PAGE));
    return Array.isArray(page) ? page[index % PAGE] : undefined;
  }

  *_range() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW) - SPARE);
    const last = Math.min((this.total ?? 0) - 1, Math.ceil((this.box.scrollTop + this.box.clientHeight) / ROW) + SPARE);
    for (let index = first; index <= last; index++) yield index;
  }

  _plan() {
    this.planned ||= requestAnimationFrame(() => {
      this.planned = 0;
      this._draw();
    });
  }

  _draw(anew = false) {
    if (!this.job) return;
    const wanted = new Set(this._range());
    for (const [index, row] of this.rows) {
      if (wanted.has(index) && !(anew && row.dataset.key !== keyOf(this.item(index)))) continue;
      row.remove();
      this.rows.delete(index);
    }
    for (const index of wanted) {
      const item = this.item(index);
      if (item === undefined) this._page(Math.floor(index / PAGE));
      else if (!this.rows.has(index)) this._row(index, item);
    }
    this._mark();
  }

  _row(index, item) {
    const row = el(
      "div",
      {
        class: "case",
        role: "option",
        id: `case-${item.id}`,
        "aria-setsize": this.total,
        "aria-posinset": index + 1,
        "aria-selected": "false",
        "data-key": keyOf(item),
        onclick: () => this.select(index),
      },
      picture(item),
      el("span", { class: "case-name", text: item.name, title: item.name }),
      facts(item),
      marks(item),
    );
    row.style.top = `${index * ROW}px`;
    this.rows.set(index, row);
    const after = [...this.rows].filter(([other]) => other > index).sort((a, b) => a[0] - b[0])[0];
    this.space.insertBefore(row, after?.[1] ?? null);
  }

  // A case has a new review.
  update(item) {
    for (const page of this.pages.values()) {
      const place = Array.isArray(page) ? page.findIndex((other) => other.id === item.id) : -1;
      if (place >= 0) page[place] = { ...page[place], review: item.review };
    }
    this._draw(true);
  }

  _mark() {
    for (const [index, row] of this.rows) {
      const own = this.item(index)?.id === this.chosen?.id;
      row.setAttribute("aria-selected", String(own));
      if (own) this.box.setAttribute("aria-activedescendant", row.id);
    }
    if (![...this.rows.keys()].some((index) => this.item(index)?.id === this.chosen?.id))
      this.box.removeAttribute("aria-activedescendant");
  }

  async select(index) {
    if (!this.total) return;
    const place = Math.min(this.total - 1, Math.max(0, index));
    await this._page(Math.floor(place / PAGE));
    const item = this.item(place);
    if (!item) return;
    this.chosen = { id: item.id, index: place };
    this._reveal(place);
    this._draw();
    this.choose(item);
  }

  // By identifier, as an address names it; a case that is not on the first page is shown without its row.
  async selectId(id) {
    const index = this._indexOf(id);
    if (index >= 0) return this.select(index);
    this.chosen = { id, index: -1 };
    this.choose(await json(`${this.job.url}/cases/${id}`));
  }

  step(steps) {
    return this.select((this.chosen?.index ?? -1) + steps);
  }

  // On the first page; -1 where it is not there.
  _indexOf(id) {
    const first = this.pages.get(0);
    return Array.isArray(first) ? first.findIndex((item) => item.id === id) : -1;
  }

  _reveal(index) {
    const [top, view] = [index * ROW, this.box.clientHeight];
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top + ROW > this.box.scrollTop + view) this.box.scrollTop = top + ROW - view;
  }

  _key(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8, Home: -1e9, End: 1e9 }[event.key];
    if (!steps || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.step(steps);
  }
}

const keyOf = (item) => item && JSON.stringify([item.id, item.score, item.flag, item.error, item.has_map, item.review]);

function picture(item) {
  if (!item.has_map) return el("span", { class: "thumb missing" }, icon("warning"));
  const source = `${item.url}/thumbnail.png?side=96&heat=${!item.unlike}`;
  const shown = el("img", { class: "thumb", width: 48, height: 48, alt: "", decoding: "async", src: source });
  shown.addEventListener("error", () => setTimeout(() => (shown.src = `${source}&again=1`), 2000), { once: true });
  return shown;
}

function facts(item) {
  if (item.error) return el("span", { class: "case-facts error", text: item.error, title: item.error });
  const parts = [`score ${number(item.score)}`];
  if (item.volume) parts.push(`${item.flagged_slices}/${item.slices} slices`);
  else if (item.p_value !== null) parts.push(`p ${number(item.p_value, 2)}`);
  return el("span", { class: "case-facts", text: parts.join(" · ") });
}

function marks(item) {
  const flag = item.error
    ? badge("error", "warning", "error")
    : item.unlike
      ? badge("unlike", "warning", "unlike")
      : item.flag && badge("flagged", "flag", "flagged");
  return el("div", { class: "case-marks", role: "none" }, flag, item.review && verdict(item.review));
}

// Short, so that the score beside it stays in sight.
function verdict({ verdict: name, rating }) {
  const made = badge(name, name === "accept" ? "check" : "close", rating ? `${rating}/5` : "");
  made.title = `${name}ed`;
  made.append(el("span", { class: "visually-hidden", text: made.title }));
  return made;
}

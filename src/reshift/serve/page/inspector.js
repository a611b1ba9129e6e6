// Beside the viewer: what was found in a case, and what its reader decides.

import { json, session } from "./api.js";
import { announce, badge, button, el, facts, icon, many, number, remember, remembered, table, toast, when } from "./dom.js";

export class Inspector {
  // ``go`` jumps to a voxel; ``reviewed`` is told of a saved review.
  constructor(go, reviewed) {
    Object.assign(this, { go, reviewed, item: null });
    this.element = el("aside", { class: "inspector", "aria-label": "Case" });
    this._buildReview();
  }

  _buildReview() {
    const verdicts = { accept: ["check", "Accept", "A"], reject: ["close", "Reject", "R"] };
    this.verdicts = Object.fromEntries(
      Object.entries(verdicts).map(([name, [picture, text, key]]) => [
        name,
        button(picture, text, () => this.decide(name), {
          class: `verdict ${name}`,
          "aria-pressed": "false",
          title: `${text} the result (${key})`,
        }),
      ]),
    );
    this.ratings = [1, 2, 3, 4, 5].map((n) =>
      el("button", {
        type: "button",
        class: "rating",
        "aria-pressed": "false",
        "aria-label": `Rating ${n} of 5`,
        title: `Rating ${n} of 5 (${n})`,
        onclick: () => this.rate(n),
        text: n,
      }),
    );
    this.note = el("textarea", { rows: 2, maxlength: 4000, onchange: () => this._noted() });
    this.name = el("input", {
      maxlength: 100,
      autocomplete: "name",
      value: remembered("reviewer"),
      onchange: () => remember("reviewer", this.name.value),
    });
    this.clear = button("", "Take back", () => this.remove(), { class: "quiet" });
    this.saved = el("p", { class: "hint saved" });
    const anonymous = !session.token_needed && session.user === "local";
    this.review = el(
      "section",
      { class: "panel", "aria-labelledby": "review-title" },
      el("h3", { id: "review-title", text: "Review" }),
      el("div", { class: "verdicts" }, this.verdicts.accept, this.verdicts.reject),
      el(
        "div",
        { class: "ratings", role: "group", "aria-label": "Rating of the heat-map, 1 poor to 5 good" },
        el("span", { class: "hint", text: "Rating" }),
        this.ratings,
      ),
      el("label", { class: "field" }, el("span", { class: "field-name", text: "Note" }), this.note),
      anonymous && el("label", { class: "field" }, el("span", { class: "field-name", text: "Reviewer" }), this.name),
      el("div", { class: "line" }, this.saved, this.clear),
    );
  }

  // The list's item first; the case with its findings when it has arrived.
  begin(item) {
    this.item = item;
    this.rating = item.review?.rating ?? null;
    this.note.value = item.review?.note ?? "";
    this.found = el(
      "section",
      { class: "panel found", "aria-labelledby": "findings-title" },
      el("h3", { id: "findings-title", text: "Findings" }),
    );
    this.body = el("div", { class: "panels" });
    this.element.replaceChildren(heading(item), item.error ? "" : this.found, item.error ? "" : this.review, this.body);
    this._show();
  }

  show(job, about) {
    if (about.id !== this.item?.id) return;
    if (about.grid) this._findings(about);
    this.body.replaceChildren(details(job, about), about.has_map ? downloads(about) : "");
  }

  _findings(about) {
    const rows = about.findings.map((finding) => this._finding(finding));
    const shown = rows.length
      ? table("findings", ["#", "size", about.grid.volume ? "slice" : "place", "peak"], rows, { class: "findings" })
      : el("p", { class: "hint", text: "Nothing above the calibrated threshold is large enough to be a finding." });
    this.found.replaceChildren(
      el("h3", { id: "findings-title", text: rows.length ? many(rows.length, "finding") : "Findings" }),
      shown,
    );
  }

  _finding(finding) {
    const unit = finding.unit === "mm" ? "mm" : "px";
    const size = finding.longest_diameter === undefined ? "–" : `${number(finding.longest_diameter)} ${unit}`;
    const place = finding.at
      ? finding.volume !== null && finding.volume !== undefined
        ? String(finding.at[0] + 1)
        : `${finding.at[2]}, ${finding.at[1]}`
      : "–";
    const jump = el(
      "button",
      {
        type: "button",
        class: "jump",
        "aria-label": `Go to finding ${finding.finding}`,
        disabled: !finding.at,
        onclick: () => this.go(finding.at),
      },
      icon("target"),
      String(finding.finding),
    );
    const row = el(
      "tr",
      {},
      el("th", { scope: "row" }, jump),
      [size, place, number(finding.peak)].map((text) => el("td", { text })),
    );
    row.addEventListener("click", (event) => !event.target.closest("button") && finding.at && this.go(finding.at));
    return row;
  }

  decide(verdict) {
    if (!this.item || this.item.error) return;
    return this._save(verdict);
  }

  rate(n) {
    if (!this.item || this.item.error) return;
    this.rating = this.rating === n ? null : n;
    if (this.item.review) return this._save(this.item.review.verdict);
    this._show();
    this.saved.textContent = "Accept or reject the result to save the rating.";
    announce(this.saved.textContent);
  }

  _noted() {
    if (this.item?.review) return this._save(this.item.review.verdict);
    this.saved.textContent = "Accept or reject the result to save the note.";
  }

  async _save(verdict) {
    const { item, rating } = this;
    const body = { verdict, rating, note: this.note.value, reviewer: this.name.value };
    this.saved.textContent = "Saving…";
    try {
      item.review = await json(`${item.url}/review`, { method: "PUT", body });
    } catch (err) {
      toast(`The review of ${item.name} was not saved: ${err.message}`, "error");
      if (this.item === item) this._show();
      return;
    }
    announce(`${item.name} ${verdict}ed`);
    if (this.item === item) this._show();
    this.reviewed(item);
  }

  async remove() {
    const { item } = this;
    await json(`${item.url}/review`, { method: "DELETE" }).catch((err) => toast(err.message, "error"));
    item.review = null;
    this.rating = null;
    if (this.item === item) this._show();
    this.reviewed(item);
  }

  _show() {
    const { review } = this.item;
    for (const [name, control] of Object.entries(this.verdicts))
      control.setAttribute("aria-pressed", String(review?.verdict === name));
    for (const [i, control] of this.ratings.entries()) control.setAttribute("aria-pressed", String(this.rating === i + 1));
    this.saved.textContent = review ? `Saved ${when(review.time)} by ${review.reviewer}` : "Not reviewed yet";
    this.clear.disabled = !review;
  }
}

function heading(item) {
  const flag = item.error
    ? badge("error", "warning", "error")
    : item.flag === null
      ? null
      : item.flag
        ? badge("flagged", "flag", "flagged")
        : badge("normal", "check", "not flagged");
  const p = item.p_value ?? item.lowest_slice_p_value;
  const numbers = item.error
    ? null
    : el(
        "dl",
        { class: "numbers" },
        el("div", {}, el("dt", { text: "Score" }), el("dd", { text: number(item.score, 4) })),
        el("div", {}, el("dt", { text: item.volume ? "Lowest slice p" : "p-value" }), el("dd", { text: number(p, 2) })),
      );
  return el(
    "header",
    { class: "case-head" },
    el("h2", { text: item.name, title: item.name }),
    el("div", { class: "line" }, flag, item.unlike && badge("unlike", "warning", "unlike the training images")),
    numbers,
    item.error && el("p", { class: "notice error", text: item.error }),
  );
}

function details(job, about) {
  const rows = [
    ["Image threshold", number(about.image_threshold)],
    ["Pixel threshold", number(about.pixel_threshold)],
    about.volume && ["Slices flagged", `${about.flagged_slices} of ${about.slices}`],
    about.grid && ["Grid", about.grid.shape.slice(about.grid.volume ? 0 : 1).join(" × ")],
    about.grid?.volume && ["Spacing", `${about.grid.spacing.map((step) => number(step)).join(" × ")} mm`],
    about.shift !== null && ["Acquisition p-value", number(about.shift, 2)],
  ].filter(Boolean);
  return el(
    "section",
    { class: "panel", "aria-labelledby": "details-title" },
    el("h3", { id: "details-title", text: "Details" }),
    facts([...rows, ["Model", el("a", { href: `#/models/${encodeURIComponent(job.model)}`, text: job.model })]]),
  );
}

function downloads(about) {
  const formats = { nifti: "NIfTI", npy: "NumPy", png: "PNG" };
  const link = (href, text) => el("a", { href, download: "", text });
  return el(
    "section",
    { class: "panel", "aria-labelledby": "files-title" },
    el("h3", { id: "files-title", text: "Heat-map as a file" }),
    el(
      "p",
      { class: "links" },
      Object.entries(formats).map(([name, text]) => link(`${about.url}/map?format=${name}`, text)),
    ),
  );
}

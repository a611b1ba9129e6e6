// The part of Markdown that model cards use, as elements: text from a bundle never becomes markup of its own.

import { el, table } from "./dom.js";

const INLINE = /(`[^`]+`|\*\*[^*]+\*\*|\[[^\]]+\]\([^)\s]+\))/;

function inline(text) {
  return text
    .split(INLINE)
    .filter(Boolean)
    .map((part) => {
      if (part.startsWith("`") && part.length > 2) return el("code", { text: part.slice(1, -1) });
      if (part.startsWith("**") && part.length > 4) return el("strong", { text: part.slice(2, -2) });
      const link = /^\[([^\]]+)\]\(([^)\s]+)\)$/.exec(part);
      return link ? link[1] : part; // where a link leads is not known to be safe
    });
}

const cells = (line) =>
  line
    .trim()
    .replace(/^\||\|$/g, "")
    .split("|")
    .map((cell) => inline(cell.trim()));

function rows(lines) {
  const [head, , ...body] = lines;
  return table(
    "the model card",
    cells(head),
    body.map((line) =>
      el(
        "tr",
        {},
        cells(line).map((cell) => el("td", {}, cell)),
      ),
    ),
  );
}

// Headings begin at <h3>: the page has its own above.
export function markdown(text) {
  const made = [];
  const lines = text.replace(/^---\n[\s\S]*?\n---\n/, "").split("\n");
  const take = (test) => {
    const taken = [];
    while (lines.length && test(lines[0])) taken.push(lines.shift());
    return taken;
  };
  while (lines.length) {
    const line = lines[0];
    const heading = /^(#{1,6})\s+(.*)/.exec(line);
    if (!line.trim()) lines.shift();
    else if (heading) {
      made.push(el(`h${Math.min(6, heading[1].length + 2)}`, {}, inline(heading[2])));
      lines.shift();
    } else if (line.startsWith("```")) {
      lines.shift();
      const code = take((next) => !next.startsWith("```")).join("\n");
      made.push(el("pre", { tabindex: "0" }, el("code", { text: code })));
      lines.shift();
    } else if (line.startsWith("|") && /^\|[\s:|-]+\|?$/.test(lines[1] ?? ""))
      made.push(rows(take((next) => next.startsWith("|"))));
    else if (/^\s*[-*]\s/.test(line)) made.push(el("ul", {}, items(take((next) => next.trim() && !/^[#|`]/.test(next)))));
    else
      made.push(
        el(
          "p",
          {},
          inline(take((next, first = next === line) => next.trim() && (first || !/^(#|\||```|\s*[-*]\s)/.test(next))).join(" ")),
        ),
      );
  }
  return made;
}

function items(lines) {
  const found = [];
  for (const line of lines) {
    if (/^\s*[-*]\s/.test(line)) found.push(line.replace(/^\s*[-*]\s/, ""));
    else found[found.length - 1] += ` ${line.trim()}`;
  }
  return found.map((text) => el("li", {}, inline(text)));
}

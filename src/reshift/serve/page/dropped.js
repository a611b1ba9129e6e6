// Files from a drop or a chooser, with their paths; folders are walked.

const HIDDEN = /(^|\/)(\.|__MACOSX\/|Thumbs\.db$|desktop\.ini$)/i; // what systems leave in folders

export function fromInput(list) {
  return [...list].map((file) => ({ file, path: file.webkitRelativePath || file.name })).filter(({ path }) => !HIDDEN.test(path));
}

// Entries must be taken at once: a drop's data is gone after the event.
export async function fromDrop(transfer) {
  const entries = [...transfer.items]
    .filter((item) => item.kind === "file")
    .map((item) => item.webkitGetAsEntry?.() ?? item.getAsFile());
  const found = await Promise.all(entries.filter(Boolean).map((entry) => walk(entry, "")));
  return found.flat().filter(({ path }) => !HIDDEN.test(path));
}

async function walk(entry, above) {
  if (entry instanceof File) return [{ file: entry, path: entry.name }];
  const path = `${above}${entry.name}`;
  if (entry.isFile) return [{ file: await new Promise((resolve, reject) => entry.file(resolve, reject)), path }];
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject)); // a hundred at a time
    if (!some.length) return found;
    for (const one of some) found.push(...(await walk(one, `${path}/`)));
  }
}

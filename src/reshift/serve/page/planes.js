// Planes of a case, fetched once and kept within a memory limit; and where a voxel lies in each of them.

import { levels } from "./api.js";

const MAX_BYTES = 256 * 2 ** 20;
const kept = new Map(); // address → promise of levels, the most recently used last
let held = 0;

export function plane(url) {
  const known = kept.get(url);
  if (known) {
    kept.delete(url);
    kept.set(url, known);
    return known;
  }
  const coming = levels(url).then((found) => {
    held += found.data.byteLength;
    for (const [old, promise] of kept) {
      if (held <= MAX_BYTES || old === url) break;
      kept.delete(old);
      promise.then(
        (gone) => (held -= gone.data.byteLength),
        () => {},
      );
    }
    return found;
  });
  coming.catch(() => kept.delete(url));
  kept.set(url, coming);
  return coming;
}

export const address = (item, kind, name, index) => `${item.url}/${kind}?plane=${name}&index=${index}`;

// A voxel is (slice, row, column), slices from inferior, rows from anterior, columns from the patient's right.
export const indexIn = (name, [s, r, c]) => ({ axial: s, coronal: r, sagittal: c })[name];

export const countIn = (name, [slices, rows, columns]) => ({ axial: slices, coronal: rows, sagittal: columns })[name];

export function pixelIn(name, [s, r, c], [slices]) {
  return { axial: [r, c], coronal: [slices - 1 - s, c], sagittal: [slices - 1 - s, r] }[name];
}

export function voxelAt(name, [row, column], index, [slices]) {
  return { axial: [index, row, column], coronal: [slices - 1 - row, index, column], sagittal: [slices - 1 - row, column, index] }[
    name
  ];
}

export function withIndex(name, voxel, index) {
  const moved = [...voxel];
  moved[{ axial: 0, coronal: 1, sagittal: 2 }[name]] = index;
  return moved;
}

// Where a reader looks first: the first finding, or the middle of the slice with the highest score.
export function firstPlace({ findings, slice_scores: scores, grid }) {
  const best = scores.reduce((a, b) => (a && a.score >= b.score ? a : b), null);
  return findings[0]?.at ?? [best?.index ?? 0, Math.floor(grid.shape[1] / 2), Math.floor(grid.shape[2] / 2)];
}

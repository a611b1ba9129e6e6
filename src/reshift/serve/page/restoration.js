// The image as it would look without disease, beside the image itself; only some methods restore.

import { announce } from "./dom.js";
import { plane } from "./planes.js";

export class Restoration {
  constructor(viewer) {
    this.viewer = viewer;
    this.on = false; // what the reader wants, also for the next case
    this.refusals = new Map(); // model → why its method restores nothing
  }

  toggle() {
    if (this.refusals.has(this.viewer.job?.model)) return;
    this.on = !this.on;
    if (this.viewer.about?.grid) this.show(); // or when the case has arrived
  }

  // As wanted and possible for the case at hand.
  show() {
    const { viewer } = this;
    const refusal = this.refusals.get(viewer.job.model) ?? "";
    const wanted = this.on && !refusal;
    viewer.controls.setRestoration(wanted, refusal);
    if (wanted === viewer.ports.has("restoration")) return;
    if (wanted) viewer.addRestoration();
    else viewer.removeRestoration();
  }

  async load(port, about, index) {
    port.say("Restoring…");
    try {
      const found = await plane(`${about.url}/restoration?grid=image&index=${index}`);
      if (this.viewer.about !== about) return;
      port.setImage(found, this.viewer.window);
      port.say("");
    } catch (err) {
      if (err.status !== 409) throw err;
      this.refusals.set(this.viewer.job.model, err.message);
      this.show();
      this.viewer.say(err.message);
      announce(err.message);
    }
  }
}

/** The page's views, a `main` each; the address selects one. */

import { remember } from "./store.js";

export class Views {
  /** Another view is shown. @type {(name: string) => void} */
  onchange = () => {};
  /** Name of the view that is shown. */
  shown = "";
  #nav;
  #links;

  /** @param {HTMLElement} nav holds a link to each view; inert while there is no choice */
  constructor(nav) {
    this.#nav = nav;
    this.#links = /** @type {HTMLAnchorElement[]} */ ([...nav.querySelectorAll("a")]);
    addEventListener("hashchange", () => nav.inert || this.#follow());
    this.#show(this.#links[0].hash.slice(1));
  }

  /**
   * Show the choice of views.
   * @param {string} first shown where the address names none
   */
  offer(first) {
    this.#nav.inert = false;
    if (location.hash) this.#follow();
    else this.#show(first);
  }

  /** The view of an address, or of an element inside it. */
  #follow() {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (!target) return;
    this.#show(target.closest("main")?.id ?? this.shown);
    remember("view", this.shown);
  }

  /** @param {string} name */
  #show(name) {
    if (name === this.shown) return;
    this.shown = name;
    for (const link of this.#links) {
      const isShown = link.hash === `#${name}`;
      if (isShown) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
      const view = document.getElementById(link.hash.slice(1));
      if (view) view.hidden = !isShown;
    }
    this.onchange(name);
  }
}

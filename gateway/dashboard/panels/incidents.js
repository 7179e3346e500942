/**
 * What is wrong now, in words: below the bar, in the page's title and in its icon, for who has it in another tab.
 * @module
 */

import { duration } from '../lib/format.js';
import { mark, say } from '../lib/dom.js';

const SHOWN = 3;
const NAMED = 4;

/**
 * One sentence for each broker that is away or silent, with those that its going took along.
 * @param {import('../model/instance.js').Instance} instance
 * @returns {string[]} like `rank 1 lost 40 s ago, ranks 3 and 4 with it`
 */
export function incidents(instance) {
  const away = (rank) => rank !== null && (rank.gone || rank.silentS > 0);
  const first = instance.list.filter((rank) => away(rank) && !away(rank.parent));
  return first.map((rank) => `${what(rank)}${together(below(rank).filter(away))}`);
}

function what(rank) {
  if (!rank.gone) return `rank ${rank.rank}: ${rank.trouble}`;
  const since = Number.isFinite(rank.since) ? ` ${duration(rank.since)} ago` : '';
  return `rank ${rank.rank} ${rank.told}${since}`;
}

const below = (rank) => rank.children.flatMap((child) => [child, ...below(child)]);

function together(ranks) {
  if (!ranks.length) return '';
  const names = ranks.slice(0, NAMED).map(({ rank }) => rank).join(', ');
  const more = ranks.length > NAMED ? ` and ${ranks.length - NAMED} more` : '';
  return `, rank${ranks.length > 1 ? 's' : ''} ${names}${more} with it`;
}

/** Shows them. */
export class Incidents {
  /** @param {HTMLElement} place  the banner @param {HTMLLinkElement} icon */
  constructor(place, icon) {
    this.place = place;
    this.icon = icon;
  }

  /**
   * @param {string[]} found
   * @param {boolean} [reachable]  the gateway still answers: of one that is gone no other icon can be had
   */
  draw(found, reachable = true) {
    const more = found.length > SHOWN ? [`and ${found.length - SHOWN} more`] : [];
    say(this.place, [...found.slice(0, SHOWN), ...more].join(' · '));
    this.place.hidden = !found.length;
    const title = found.length ? `${found[0]} · Headgate` : 'Headgate';
    if (document.title !== title) document.title = title;
    if (reachable) mark(this.icon, 'href', found.length ? 'favicon-trouble.svg' : 'favicon.svg');
  }
}

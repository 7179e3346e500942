/**
 * The overlay as a picture: brokers, their health, and what flows between them. A tree for keyboard and screen reader.
 * @module
 */

import { h, mark, s, say } from '../lib/dom.js';
import { latency, rate } from '../lib/format.js';
import { Sparkline } from '../lib/sparkline.js';
import { plan } from '../lib/treeplan.js';

const HEIGHTS = Object.freeze({ graph: 78, outline: 46, lines: 28 });
/** Subtrees of a large instance start folded. */
const FOLD_ABOVE = 64;

/** Status -> path of its mark, in a box of 12: shape tells what colour tells, too. */
const MARKS = {
  full: 'M6 1.500a4.500 4.500 0 1 0 .01 0Z',
  partial: 'M6 1.500a4.500 4.500 0 0 0 0 9Z M6 1.500a4.500 4.500 0 0 1 0 9',
  degraded: 'M6 1 11.300 10.500H.7Z',
  lost: 'M2 2 10 10M10 2 2 10',
  silent: 'M6 1v6M6 9.500v1.500',
  offline: 'M6 2a4 4 0 1 0 .01 0Z',
  unknown: 'M6 5a1 1 0 1 0 .01 0Z',
};

const MOODS = { full: 'ok', partial: 'warn', degraded: 'warn', lost: 'bad', silent: 'bad', offline: 'bad', unknown: 'muted' };

/** What flows over the edge between a child and its parent, messages per second. */
function flow(rank) {
  return (rank.in || 0) + (rank.out || 0);
}

/** Where the parts of a node stand: below each other in a graph, side by side in a line. */
function arrange(form, width, rowHeight) {
  if (form === 'lines') {
    const spark = { x: width - 180, y: 4, width: 104, height: rowHeight - 8 };
    return { bar: 5, title: 18.5, figures: 18.5, figuresX: width - 300, figuresRoom: 290, hostRoom: width - 300 - 96, spark };
  }
  const title = form === 'outline' ? 19 : 22;
  const spark = form === 'outline' ? { x: width - 76 - Math.min(160, width - 220), y: rowHeight - 25, height: 19 }
    : { x: 20, y: rowHeight - 25, height: 20 };
  spark.width = form === 'outline' ? Math.min(160, width - 220) : width - 28;
  return { bar: 8, title, figures: title + 17.5, figuresX: 34, figuresRoom: width - 44, hostRoom: width - 96, spark };
}

/** One broker in the picture. */
class Node {
  constructor() {
    this.rank = null;
    this.spark = new Sparkline('request', '');
    this.spark.element.setAttribute('aria-hidden', 'true');
    this.box = s('rect', { class: 'node-box', rx: 7 });
    this.bar = s('rect', { class: 'node-bar', rx: 2, width: 4, x: 7 });
    this.mark = s('path', { class: 'node-mark' });
    this.title = s('text', { class: 'node-title', x: 34 });
    this.host = s('tspan', { class: 'node-host', dx: 6 });
    this.number = s('tspan', {});
    this.title.append(this.number, this.host);
    this.figures = s('text', { class: 'node-figures', x: 34 });
    this.ms = s('text', { class: 'node-ms', 'text-anchor': 'end' });
    this.fold = s('g', { class: 'node-fold' }, s('circle', { r: 8 }), s('path', { d: '' }));
    this.element = s('g', { class: 'node', role: 'treeitem', tabindex: -1 },
      this.box, this.spark.element, this.bar, this.mark, this.title, this.figures, this.ms, this.fold);
  }

  draw(place, { form, rowHeight }, selected) {
    const { node: rank, x, y, width } = place;
    this.rank = rank;
    mark(this.element, 'transform', `translate(${x} ${y})`);
    mark(this.element, 'data-mood', MOODS[rank.status] ?? 'muted');
    mark(this.element, 'data-status', rank.status);
    mark(this.element, 'data-rank', rank.rank);
    mark(this.element, 'aria-level', place.level);
    mark(this.element, 'aria-selected', String(selected));
    mark(this.element, 'aria-expanded', rank.children.length ? String(!place.folded) : null);
    mark(this.element, 'aria-label', spoken(rank));
    mark(this.box, 'width', width);
    mark(this.box, 'height', rowHeight);
    mark(this.mark, 'd', MARKS[rank.status] ?? MARKS.unknown);
    const at = arrange(form, width, rowHeight);
    mark(this.bar, 'y', at.bar);
    mark(this.bar, 'height', rowHeight - 2 * at.bar);
    mark(this.mark, 'transform', `translate(17 ${at.title - 10.5})`);
    mark(this.title, 'y', at.title);
    mark(this.figures, 'x', at.figuresX);
    mark(this.figures, 'y', at.figures);
    mark(this.ms, 'x', width - 10);
    mark(this.ms, 'y', at.figures);
    this.#text(rank, at);
    this.#spark(rank, at.spark);
    this.#foldMark(place, width, rowHeight);
  }

  #text(rank, { hostRoom, figuresRoom }) {
    say(this.number, `rank ${rank.rank}`);
    say(this.host, cut(rank.host, Math.max(2, Math.floor(hostRoom / 7))));
    const unknown = rank.gone || rank.silentS;
    say(this.figures, unknown ? cut(rank.trouble, Math.floor(figuresRoom / 6.3)) : `↓ ${rate(rank.in)}  ↑ ${rate(rank.out)}`);
    say(this.ms, unknown ? '' : latency(rank.ms));
  }

  #spark(rank, { x, y, width = 0, height }) {
    mark(this.spark.element, 'display', width > 30 && !rank.gone ? null : 'none');
    mark(this.spark.element, 'x', x);
    mark(this.spark.element, 'y', y);
    mark(this.spark.element, 'width', Math.max(width, 0));
    mark(this.spark.element, 'height', height);
    this.spark.draw(rank.traffic, rate);
  }

  #foldMark(place, width, rowHeight) {
    const { children } = place.node;
    mark(this.fold, 'display', children.length && place.folded ? null : 'none');
    mark(this.fold, 'transform', `translate(${width} ${rowHeight / 2})`);
    mark(this.fold.lastChild, 'd', 'M-4 0h8M0 -4v8');
  }
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, Math.max(1, most - 1))}…` : text);

function spoken(rank) {
  const figures = rank.gone || rank.silentS ? rank.trouble
    : `${rate(rank.in)} messages a second in, ${rate(rank.out)} out, round trip ${latency(rank.ms)}`;
  return `rank ${rank.rank} ${rank.host}, ${rank.status}${figures ? `, ${figures}` : ''}`;
}

/** The picture; `onselect(rank | null)` tells what was chosen. */
export class Tree {
  #instance;
  #nodes = [];
  #edges = s('g', { class: 'edges', role: 'presentation' });
  #group = s('g', { role: 'presentation' });
  #svg;
  #frame = h('div', { class: 'tree-frame' });
  #unfolded = new Set();
  #folded = new Set();
  #focus = 0;
  #places = [];

  /**
   * @param {HTMLElement} parent
   * @param {import('../model/instance.js').Instance} instance
   * @param {(rank: number | null) => void} onselect
   */
  constructor(parent, instance, onselect) {
    this.#instance = instance;
    this.selected = null;
    this.onselect = onselect;
    this.#svg = s('svg', {
      class: 'tree-picture', role: 'tree', 'aria-label': 'Brokers of the overlay',
      onkeydown: (event) => this.#key(event), onclick: (event) => this.#click(event),
    }, this.#edges, this.#group);
    this.empty = h('p', { class: 'empty', text: 'Looking for the tree…' });
    this.#frame.append(this.empty);
    parent.append(this.#frame);
    new ResizeObserver(() => this.draw()).observe(this.#frame);
  }

  #isFolded = (rank) => {
    if (this.#folded.has(rank.rank)) return true;
    if (this.#instance.ranks.size <= FOLD_ABOVE || this.#unfolded.has(rank.rank)) return false;
    return rank.parent !== null && rank.children.length > 0;
  };

  /** Say why there is no tree. @param {string} text */
  refuse(text) {
    say(this.empty, text);
  }

  /** Draw what is known now. */
  draw() {
    const { root } = this.#instance;
    const width = this.#frame.clientWidth;
    if (!root || width === 0) return;
    if (this.empty.isConnected) this.empty.replaceWith(this.#svg);
    const layout = plan(root, { width: width - 2, heights: HEIGHTS, folded: this.#isFolded });
    this.#places = layout.places;
    mark(this.#svg, 'width', width);
    mark(this.#svg, 'height', layout.height + 2);
    mark(this.#svg, 'viewBox', `-1 -1 ${width} ${layout.height + 2}`);
    this.#drawNodes(layout);
    this.#drawEdges(layout);
  }

  #drawNodes(layout) {
    while (this.#nodes.length > layout.places.length) this.#nodes.pop().element.remove();
    while (this.#nodes.length < layout.places.length) {
      const node = new Node();
      this.#nodes.push(node);
      this.#group.append(node.element);
    }
    if (!layout.places.some(({ node }) => node.rank === this.#focus)) this.#focus = this.#instance.root.rank;
    layout.places.forEach((place, at) => {
      this.#nodes[at].draw(place, layout, place.node.rank === this.selected);
      mark(this.#nodes[at].element, 'tabindex', place.node.rank === this.#focus ? 0 : -1);
    });
  }

  /** An edge is as wide as what flows over it, on a scale of doublings, and moves while something flows. */
  #drawEdges({ places, form, rowHeight }) {
    const edges = places.filter((place) => place.parent);
    while (this.#edges.children.length > edges.length * 2) this.#edges.lastChild.remove();
    while (this.#edges.children.length < edges.length * 2) {
      this.#edges.append(s('path', { class: 'edge' }), s('path', { class: 'edge-flow' }));
    }
    edges.forEach((place, at) => {
      const d = form === 'graph' ? curve(place, rowHeight) : elbow(place, rowHeight);
      const amount = place.node.gone ? 0 : flow(place.node);
      const wide = 1.5 + Math.min(form === 'graph' ? 6 : 2.5, Math.log2(1 + amount) * 0.6);
      const base = this.#edges.children[at * 2];
      const moving = this.#edges.children[at * 2 + 1];
      mark(base, 'd', d);
      mark(base, 'stroke-width', wide.toFixed(1));
      mark(base, 'data-mood', MOODS[place.node.status] ?? 'muted');
      mark(moving, 'd', d);
      mark(moving, 'data-pace', amount === 0 ? null : amount < 20 ? 'slow' : amount < 500 ? 'brisk' : 'fast');
    });
  }

  /** Choose a broker; the same one again, or null, chooses none. @param {number | null} rank */
  select(rank) {
    this.selected = rank === this.selected ? null : rank;
    if (rank !== null) this.#focus = rank;
    this.draw();
    this.onselect(this.selected);
  }

  /** Choose a broker and bring it into view, whatever is folded. @param {number} rank */
  reveal(rank) {
    for (let above = this.#instance.ranks.get(rank)?.parent; above; above = above.parent) {
      this.#folded.delete(above.rank);
      this.#unfolded.add(above.rank);
    }
    if (rank === this.selected) this.draw();
    else this.select(rank);
    this.#nodes.find((node) => node.rank.rank === rank)?.element.scrollIntoView({ block: 'nearest' });
  }

  /** Put the keyboard on the tree. */
  focus() {
    this.#nodes.find((node) => node.rank.rank === this.#focus)?.element.focus();
  }

  #click(event) {
    const element = event.target.closest('.node');
    if (!element) return;
    const rank = Number(element.dataset.rank);
    if (event.target.closest('.node-fold')) this.#unfold(rank);
    else this.select(rank);
    this.focus();
  }

  #unfold(rank) {
    this.#folded.delete(rank);
    this.#unfolded.add(rank);
    this.draw();
  }

  #fold(rank) {
    this.#unfolded.delete(rank);
    this.#folded.add(rank);
    this.draw();
  }

  #key(event) {
    const at = this.#places.findIndex(({ node }) => node.rank === this.#focus);
    const place = this.#places[at];
    if (!place || event.ctrlKey || event.metaKey || event.altKey) return;
    const go = (to) => {
      this.#focus = (to ?? place).node.rank;
      this.draw();
      this.focus();
    };
    const keys = {
      ArrowDown: () => go(this.#places[at + 1]),
      ArrowUp: () => go(this.#places[at - 1]),
      Home: () => go(this.#places[0]),
      End: () => go(this.#places.at(-1)),
      ArrowRight: () => (place.folded ? this.#unfold(this.#focus) : go(this.#childOf(place))),
      ArrowLeft: () => (place.node.children.length && !place.folded && place.parent
        ? this.#fold(this.#focus) : go(place.parent)),
      Enter: () => this.select(this.#focus),
      ' ': () => this.select(this.#focus),
      Escape: () => this.selected !== null && this.select(null),
    };
    if (!Object.hasOwn(keys, event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    keys[event.key]();
    this.focus();
  }

  #childOf(place) {
    return this.#places.find((other) => other.parent === place);
  }
}

function curve({ parent, x, y }, rowHeight) {
  const from = parent.x + parent.width;
  const middle = (from + x) / 2;
  const [y0, y1] = [parent.y + rowHeight / 2, y + rowHeight / 2];
  return `M${from} ${y0}C${middle} ${y0} ${middle} ${y1} ${x} ${y1}`;
}

function elbow({ parent, x, y }, rowHeight) {
  const left = parent.x + 8;
  return `M${left} ${parent.y + rowHeight}V${y + rowHeight / 2}H${x}`;
}

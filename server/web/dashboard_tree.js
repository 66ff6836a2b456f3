// SPDX-License-Identifier: Apache-2.0
// The relays between the server and its daemons, as a nested list: each relay, how many daemons are below it, and those whose
// connection it holds. A daemon's `relay` is the path to it, the server's own relay first: "eu/paris".
'use strict';

const TREE_NAMES_MAX = 20;

function treeOf(daemons) {
  const root = { name: 'server', below: new Map(), own: [], all: [] };
  for (const d of daemons) {
    let at = root;
    at.all.push(d);
    for (const name of d.relay ? d.relay.split('/') : []) {
      if (!at.below.has(name)) at.below.set(name, { name, below: new Map(), own: [], all: [] });
      at = at.below.get(name);
      at.all.push(d);
    }
    at.own.push(d);
  }
  return root;
}

function treeText(at) {
  const n = at.all.length, lost = at.all.filter((d) => d.state === 'lost').length;
  const names = at.own.slice(0, TREE_NAMES_MAX).map((d) => d.name).join(', ');
  const more = at.own.length > TREE_NAMES_MAX ? ` and ${at.own.length - TREE_NAMES_MAX} more` : '';
  return `${at.name}: ${n} ${n === 1 ? 'daemon' : 'daemons'}${lost ? `, ${lost} lost` : ''}${names ? ` (${names}${more})` : ''}`;
}

function treeItem(at) {
  const item = el('li', {}, el('span', {}, treeText(at)));
  const below = [...at.below.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
  if (below.length) item.append(el('ul', {}, ...below.map(treeItem)));
  return item;
}

// Drawn again only when it has changed.
function relayTree() {
  const node = el('ul', { class: 'tree', 'aria-label': 'relays', hidden: '' });
  let drawn = '';
  return {
    node,
    draw(daemons) {
      const key = JSON.stringify(daemons.map((d) => [d.relay, d.name, d.state === 'lost']));
      node.hidden = !daemons.some((d) => d.relay);
      if (key === drawn) return;
      drawn = key;
      node.replaceChildren(treeItem(treeOf(daemons)));
    },
  };
}

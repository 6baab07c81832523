'use strict';
// The rows of a table come as text, and are drawn in chunks that come into view. Pressing the head of a column sorts by it:
// first the one way, then the other, then as in the file. A box above the table finds tensors by their name or type.
const CHUNK = 50;
const words = new Intl.Collator('en', { numeric: true });
const reveals = new Map(); // from the place of a row to a function that draws and returns it
const ENTITIES = { '&lt;': '<', '&gt;': '>', '&quot;': '"', '&#39;': "'", '&amp;': '&' };
const plain = html => html.replace(/<[^>]*>/g, '').replace(/&(lt|gt|quot|#39|amp);/g, entity => ENTITIES[entity]);

for (const source of document.querySelectorAll('.box > noscript')) {
  const box = source.parentNode;
  const html = source.textContent;
  const [from, to] = [html.indexOf('<tbody>'), html.lastIndexOf('</tbody>')];
  source.nextElementSibling?.remove(); // a browser that saved the page saved what was drawn, too
  source.insertAdjacentHTML('afterend', html.slice(0, from) + html.slice(to + '</tbody>'.length));
  const table = source.nextElementSibling;
  const heads = [...table.tHead.rows[0].cells];
  const rows = html.slice(from, to).split(/\n(?=<tr )/).slice(1).map(line => {
    const [, place, minor] = /^<tr data-place="(\d+)"( class)?/.exec(line);
    return { line, place: Number(place), isMinor: Boolean(minor), isFound: true };
  });
  const inFile = [...rows].sort((a, b) => a.place - b.place);
  const hide = box.parentNode.querySelector('#hide');
  let [order, shown] = [rows, []];

  const fill = body => {
    if (body.rows.length) return;
    const start = [...table.tBodies].indexOf(body) * CHUNK;
    body.innerHTML = shown.slice(start, start + CHUNK).map(({ line }) => line).join('');
    body.style.height = '';
    [...body.rows].forEach((row, at) => { row.ariaRowIndex = start + at + 2; });
    seen.unobserve(body);
  };
  const fillSeen = entries => entries.filter(entry => entry.isIntersecting).forEach(({ target }) => fill(target));
  const seen = new IntersectionObserver(fillSeen, { root: box, rootMargin: '1000px 0px' });
  const draw = () => {
    seen.disconnect();
    shown = order.filter(row => row.isFound && !(row.isMinor && hide?.checked));
    table.ariaRowCount = shown.length + 1;
    while (table.tBodies.length) table.tBodies[0].remove();
    for (let start = 0; start < shown.length; start += CHUNK) table.createTBody();
    const [first, ...others] = table.tBodies;
    if (first) fill(first);
    const height = others.length && first.offsetHeight / CHUNK; // of a row, about
    others.forEach((body, at) => {
      body.style.height = `${Math.min(CHUNK, shown.length - (at + 1) * CHUNK) * height}px`;
      seen.observe(body);
    });
  };
  addEventListener('beforeprint', () => [...table.tBodies].forEach(fill));
  hide?.addEventListener('change', draw);

  const cellsOf = (row, column) => row.line.split(/<\/t[hd]>/, column + 1)[column];
  const sorted = (column, direction) => {
    const isText = heads[column].classList.contains('text');
    const keyed = inFile.map(row => {
      const cell = cellsOf(row, column);
      const number = /^<t[hd][^>]* data-key="(.*?)"/.exec(cell);
      return { row, key: isText ? plain(cell) || null : number && Number(number[1]) };
    });
    const compare = isText ? words.compare : (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    const known = keyed.filter(item => item.key !== null).sort((a, b) => direction * compare(a.key, b.key));
    return [...known, ...keyed.filter(item => item.key === null)].map(item => item.row);
  };

  const find = document.createElement('p');
  const input = document.createElement('input');
  const found = document.createElement('output');
  find.className = 'find';
  input.type = 'search';
  input.placeholder = 'Find by name or type';
  input.setAttribute('aria-label', input.placeholder);
  find.append(input, found);
  box.before(find);
  const search = () => {
    const wanted = input.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      row.text ??= [0, 1].map(column => plain(cellsOf(row, column))).join(' ').toLowerCase();
      row.isFound = wanted.every(word => row.text.includes(word));
    }
    found.textContent = input.value.trim() && `${rows.filter(row => row.isFound).length} of ${rows.length}`;
    draw();
  };
  input.addEventListener('input', search);

  heads.forEach((head, column) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.append(...head.childNodes);
    head.append(button);
    if (!head.hasAttribute('aria-sort')) head.setAttribute('aria-sort', 'none');
    const ways = ['none', 'ascending', 'descending'];
    if (head.classList.contains('largest')) ways.splice(1, 2, 'descending', 'ascending');
    button.addEventListener('click', () => {
      const way = ways[(ways.indexOf(head.getAttribute('aria-sort')) + 1) % ways.length];
      for (const other of heads) other.setAttribute('aria-sort', other === head ? way : 'none');
      order = way === 'none' ? inFile : sorted(column, way === 'ascending' ? 1 : -1);
      draw();
    });
  });

  const reveal = row => {
    if (!row.isFound) {
      input.value = '';
      search();
    }
    if (hide?.checked && row.isMinor) {
      hide.checked = false;
      draw();
    }
    const at = shown.indexOf(row);
    const body = table.tBodies[Math.floor(at / CHUNK)];
    fill(body);
    return body.rows[at % CHUNK];
  };
  for (const row of rows) reveals.set(row.place, () => reveal(row));
  draw();
}

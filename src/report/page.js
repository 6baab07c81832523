'use strict';
// Rows are put in order by the column whose head is pressed: first the one way, then the other, then as in the file.
// A box above them finds tensors by their name or type.
const words = new Intl.Collator('en', { numeric: true });
for (const table of document.querySelectorAll('table.tensors')) {
  const body = table.tBodies[0];
  const rows = [...body.rows].sort((a, b) => a.dataset.place - b.dataset.place);
  const heads = [...table.tHead.rows[0].cells];

  const sorted = (column, direction) => {
    const isText = heads[column].classList.contains('text');
    const keyed = rows.map(row => {
      const { dataset, textContent } = row.cells[column];
      return { row, key: isText ? textContent : 'key' in dataset ? Number(dataset.key) : null };
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
  document.querySelector('#tensors').after(find);
  let texts; // of thousands of rows, they take a while
  input.addEventListener('input', () => {
    texts ??= rows.map(row => [0, 1].map(at => row.cells[at].textContent).join(' ').toLowerCase());
    const wanted = input.value.toLowerCase().split(/\s+/);
    rows.forEach((row, at) => { row.hidden = !wanted.every(word => texts[at].includes(word)); });
    found.textContent = input.value.trim() && `${rows.filter(row => !row.hidden).length} of ${rows.length}`;
  });

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
      const order = way === 'none' ? rows : sorted(column, way === 'ascending' ? 1 : -1);
      const moved = document.createDocumentFragment();
      for (const row of order) moved.append(row);
      body.append(moved);
    });
  });
}

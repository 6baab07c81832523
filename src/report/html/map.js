// The map has a switch for the measure, one for the series and one for the scale, and shows the figures of the weight that is
// pointed at.
for (const map of document.querySelectorAll('.map')) {
  const measures = JSON.parse(map.dataset.measures);
  const series = JSON.parse(map.dataset.series);
  const cells = [...map.querySelectorAll('[data-v]')];
  // The letter of a figure's level on its own scale comes first, then that on the scale of all series.
  let [measure, chosen, scale, shown, isPinned] = [0, 0, 0, null, false];

  const element = (tag, props, ...children) => {
    const made = Object.assign(document.createElement(tag), props);
    made.append(...children);
    return made;
  };
  // A figure is the letters of its levels, and its text; that of a weight without figures, one letter and the reason.
  const isKnown = figure => figure && figure[0] !== 'z';
  const number = figure => figure.slice(isKnown(figure) ? 2 : 1);
  const levelOf = figure => (isKnown(figure) ? figure[scale] : 'z');
  const textOf = (figure, at) => {
    const text = number(figure);
    return text && (isNaN(text) ? text : text + measures[at].unit);
  };
  const worse = (a, b) => {
    if (a[0] !== b[0]) return a[0] < b[0] ? -1 : 1;
    return (number(a) - number(b)) * (measures[measure].low ? 1 : -1) || 0;
  };
  const weightsOf = ({ dataset }) => {
    const [names, rows] = [dataset.names.split('\n'), dataset.rows.split(' ')];
    return dataset.v.split('\n').map((text, at) => {
      const figures = text.split('|').map(of => of.split(','));
      return { name: names[at], row: rows[at], figures, figure: figures[chosen][measure] || 'z' };
    });
  };
  const worstFirst = weights => [...weights].sort((a, b) => worse(a.figure, b.figure));

  const canGoTo = place => place !== '' && reveals.has(Number(place));
  const goTo = place => {
    if (!canGoTo(place)) return;
    const row = reveals.get(Number(place))();
    document.querySelector('.gone-to')?.classList.remove('gone-to');
    row.classList.add('gone-to');
    row.cells[0].tabIndex = -1;
    row.cells[0].focus({ preventScroll: true });
    // Rows out of sight have guessed heights until they come near.
    row.scrollIntoView({ block: 'center' });
    requestAnimationFrame(() => row.scrollIntoView({ block: 'center' }));
  };

  const pointed = element('div', { className: 'pointed', role: 'status' });
  const show = cell => {
    shown?.classList.remove('shown');
    shown = cell;
    pointed.replaceChildren();
    if (!cell) {
      pointed.append('Point at a weight, or tap it, to see its figures.');
      return;
    }
    cell.classList.add('shown');
    const weights = weightsOf(cell);
    const sorted = worstFirst(weights);
    const [{ name, row, figures, figure }] = sorted;
    const title = weights.length > 1 ? `the worst of ${weights.length}: ${name}` : name;
    pointed.append(element('b', { className: 'name', textContent: title }));
    if (canGoTo(row)) {
      pointed.append(' ', element('button', { type: 'button', textContent: 'in the table', onclick: () => goTo(row) }));
    }
    figures.forEach((of, at) => {
      const known = of.map((figure, at) => (isKnown(figure) ? `${measures[at].title} ${textOf(figure, at)}` : ''));
      const text = known.filter(Boolean).join(' · ') || number(of[0]) || 'no figures';
      pointed.append(element('div', {}, series.length > 1 ? `${series[at]}: ${text}` : text));
    });
    if (weights.length === 1) return;
    const measured = sorted.filter(weight => isKnown(weight.figure));
    const at = part => textOf(measured[Math.floor((measured.length - 1) * part)].figure, measure);
    if (measured.length) {
      pointed.append(element('div', {}, `${measures[measure].title}: worst ${at(0)}, median ${at(0.5)}, best ${at(1)}`));
    }
    const items = weights.map(({ name, row, figure }) => element('i', {
      className: levelOf(figure), title: `${name}: ${textOf(figure, measure) || 'no figures'}`, onclick: () => goTo(row),
    }));
    pointed.append(element('div', { className: 'spread' }, ...items));
  };

  const color = () => {
    for (const cell of cells) {
      const [{ figure }] = worstFirst(weightsOf(cell));
      cell.className = levelOf(figure);
      cell.textContent = isKnown(figure) ? number(figure) : '–';
    }
    map.querySelector('.legend b').textContent = measures[measure].title;
    const ticks = measures[measure].ticks[scale ? series.length : chosen];
    map.querySelectorAll('.ticks span').forEach((tick, at) => { tick.textContent = ticks[at]; });
    show(shown);
  };
  const makeSwitch = (label, names, choose) => {
    if (names.length < 2) return;
    const buttons = names.map((name, at) => element('button', {
      type: 'button', textContent: name, ariaPressed: at === 0, onclick: () => {
        buttons.forEach((button, other) => { button.ariaPressed = other === at; });
        choose(at);
        color();
      },
    }));
    const group = element('div', { className: 'switch', role: 'group', ariaLabel: label }, ...buttons);
    map.querySelector('.legend').before(group);
  };
  makeSwitch('series', series, at => { chosen = at; });
  if (series.length > 1) makeSwitch('scale', ['a scale for each', 'one scale for all'], at => { scale = at; });
  makeSwitch('measure', measures.map(({ title }) => title), at => { measure = at; });
  map.querySelector('.legend').after(pointed);
  show(null);

  const box = map.querySelector('.box');
  const cellAt = event => event.target.closest('[data-v]');
  box.addEventListener('pointerover', event => {
    const cell = cellAt(event);
    if (cell && event.pointerType === 'mouse' && !isPinned) show(cell);
  });
  // The cell of one weight leads to its row at once if its figures are shown already. The cell of several keeps them shown.
  const open = cell => {
    const weights = weightsOf(cell);
    if (weights.length === 1 && cell === shown) goTo(weights[0].row);
    isPinned = weights.length > 1 && !(isPinned && cell === shown);
    show(cell);
  };
  box.addEventListener('click', event => {
    const cell = cellAt(event);
    if (cell) open(cell);
  });
  const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  box.addEventListener('keydown', event => {
    if (event.key === 'Enter' && shown) open(shown);
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    const table = shown?.closest('table');
    const next = shown && table.rows[shown.parentNode.rowIndex + step[1]]?.cells[shown.cellIndex + step[0]];
    const target = shown ? next : cells[0];
    if (!target?.matches('[data-v]')) return;
    show(target);
    target.scrollIntoView({ block: 'nearest', inline: 'nearest' });
  });
}

// The interactive charts of a report: uPlot over the numbers in #data. Where this fails, the pictures stay.
(() => {
  "use strict";
  const { charts, palette } = JSON.parse(document.getElementById("data").textContent);
  const DASHES = [undefined, [9, 5], [2, 4], [9, 4, 2, 4]];
  const CONTROLS = { interval: "95% interval", line: "single seeds" };

  const colourOf = (place) => palette[place % palette.length];
  const dashOf = (place) => DASHES[Math.floor(place / palette.length) % DASHES.length];
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const isPlain = (x) => x === 0 || (Math.abs(x) >= 1e-4 && Math.abs(x) < 1e6);
  const formatNumber = (x) => (isPlain(x) ? `${+x.toPrecision(5)}` : (+x.toPrecision(5)).toExponential());

  function formatSteps(steps) {
    const units = [["B", 1e9], ["M", 1e6], ["k", 1e3]];
    const [unit, size] = units.find(([, n]) => Math.abs(steps) >= n) || ["", 1];
    return +(steps / size).toPrecision(6) + unit;
  }

  function make(name, properties, ...children) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  }

  // The columns of a curve beside its steps: {kind, name, values, dash, hasFailed}; the last is the interquartile mean.
  function columnsOf(curve, place) {
    const hasMiddle = curve.middle.some((x) => x != null);
    const lines = curve.lines.length > 1 || !hasMiddle ? curve.lines : [];
    const columns = lines.map((line) => ({
      kind: "line", name: line.name, values: line.values, hasFailed: line.failed, dash: line.failed ? [3, 3] : undefined,
    }));
    if (curve.low) {
      columns.push({ kind: "interval", name: "high", values: curve.high });
      columns.push({ kind: "interval", name: "low", values: curve.low });
    }
    columns.push({ kind: "middle", name: curve.name, values: curve.middle, dash: dashOf(place) });
    return columns.map((column) => ({ ...column, place, curve }));
  }

  // The places of numbers that no line leads to; undefined stands at the steps of other curves, null for no number.
  function lonePoints(values) {
    const own = values.flatMap((x, k) => (x === undefined ? [] : [k]));
    return own.filter((k, place) => [k, own[place - 1], own[place + 1]].every((j, i) => (values[j] == null) === i > 0));
  }

  function seriesOf(column) {
    const colour = colourOf(column.place);
    const widths = { line: 1, interval: 0, middle: 2.5 };
    return {
      label: column.name,
      stroke: column.kind === "middle" ? colour : column.kind === "line" ? colour + "80" : "#0000",
      width: widths[column.kind],
      dash: column.dash,
      points: { show: column.kind !== "interval", size: 6, fill: colour, filter: (plot, k) => lonePoints(plot.data[k]) },
    };
  }

  function bandsOf(columns) {
    const first = columns.flatMap((column, k) => (column.kind === "interval" && column.name === "high" ? [k] : []));
    return first.map((k) => ({ series: [k + 1, k + 2], fill: colourOf(columns[k].place) + "33" }));
  }

  // The place of a curve's last number up to some steps, as curves of other steps have none there; -1 for none.
  const placeAt = (curve, steps) => curve.steps.findLastIndex((x, k) => x <= steps && curve.middle[k] != null);

  function describe(plot, columns) {
    const index = plot.cursor.idx;
    if (index == null) return "Move over the chart, or use the arrow keys, for numbers; drag to zoom.";
    const shown = columns.flatMap((column, k) => {
      if (column.kind !== "middle" || !plot.series[k + 1].show) return [];
      const place = placeAt(column.curve, plot.data[0][index]);
      const hasInterval = column.curve.low && plot.series[k].show;
      const texts = [column.curve.texts[place] || "none", hasInterval && column.curve.intervals[place]];
      return [[column.name, ...texts.filter(Boolean)].join(" ")];
    });
    return `${plot.data[0][index].toLocaleString("en")} steps: ${shown.join("; ") || "none"}`;
  }

  // A cross where each seed that failed ends, also where single seeds are hidden.
  function markEnds({ ctx, bbox, data, series, valToPos }, columns) {
    const middles = columns.flatMap((column, k) => (column.kind === "middle" ? [k] : []));
    const size = 4 * devicePixelRatio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    columns.forEach((column, k) => {
      const last = column.hasFailed ? data[k + 1].findLastIndex((x) => x != null) : -1;
      if (last < 0 || !series[middles[column.place] + 1].show) return;
      const x = valToPos(data[0][last], "x", true);
      const y = valToPos(data[k + 1][last], "y", true);
      ctx.strokeStyle = colourOf(column.place);
      ctx.lineWidth = 1.5 * devicePixelRatio;
      ctx.beginPath();
      for (const sign of [1, -1]) {
        ctx.moveTo(x - size, y - sign * size);
        ctx.lineTo(x + size, y + sign * size);
      }
      ctx.stroke();
    });
    ctx.restore();
  }

  function optionsOf(columns, width, onCursor) {
    const axis = {
      stroke: () => style("--text"), grid: { stroke: () => style("--grid"), width: 1 },
      ticks: { stroke: () => style("--grid"), width: 1 }, font: "12px system-ui, sans-serif",
      labelFont: "12px system-ui, sans-serif", labelSize: 20,
    };
    return {
      width,
      height: heightOf(width),
      legend: { show: false },
      cursor: { points: { show: (plot, k) => columns[k - 1].kind === "middle" && undefined }, y: false },
      scales: { x: { time: false } },
      series: [{}, ...columns.map(seriesOf)],
      bands: bandsOf(columns),
      axes: [
        { ...axis, size: 34, label: "environment steps of each seed", values: (_, ticks) => ticks.map(formatSteps) },
        { ...axis, label: "return", size: 66, values: (_, ticks) => ticks.map(formatNumber) },
      ],
      hooks: { setCursor: [onCursor], draw: [(plot) => markEnds(plot, columns)] },
    };
  }

  const heightOf = (width) => Math.round(Math.min(420, Math.max(260, width * 0.5)));

  // The checkboxes of a chart: each curve, by its text, where there are several, intervals, all single seeds, and each of them.
  function controlsOf(columns, curves, texts, update) {
    const state = { curves: curves.map(() => true), interval: true, line: curves.length === 1, hidden: new Set() };
    const checkbox = (text, colour, isOn, change) => {
      const input = make("input", { type: "checkbox", checked: isOn });
      input.addEventListener("change", () => { change(input.checked); update(state); });
      const swatch = make("span", { className: "swatch" });
      swatch.style.background = colour;
      return make("label", {}, input, ...(colour ? [swatch] : []), text);
    };
    const boxes = curves.length > 1
      ? curves.map((curve, k) => checkbox(texts[k], colourOf(k), true, (on) => { state.curves[k] = on; }))
      : [];
    for (const [kind, text] of Object.entries(CONTROLS)) {
      if (!columns.some((column) => column.kind === kind)) continue;
      boxes.push(checkbox(text, "", state[kind], (on) => { state[kind] = on; }));
    }
    const fieldset = boxes.length ? make("fieldset", {}, make("legend", {}, "Shown"), ...boxes) : "";
    const lines = columns.filter((column) => column.kind === "line");
    if (curves.length > 1 || lines.length < 2) return { state, parts: [fieldset] };
    const single = lines.map((column) => checkbox(column.name, "", true, (on) => {
      state.hidden[on ? "delete" : "add"](column.name);
    }));
    const box = make("details", {}, make("summary", {}, "Choose single seeds"), make("fieldset", {}, ...single));
    return { state, parts: [fieldset, box] };
  }

  function isShown(column, state) {
    if (!state.curves[column.place]) return false;
    return column.kind === "middle" || (state[column.kind] && !state.hidden.has(column.name));
  }

  function moveCursor(plot, by) {
    const last = plot.data[0].length - 1;
    const index = Math.min(last, Math.max(0, (plot.cursor.idx ?? (by > 0 ? -1 : last + 1)) + by));
    plot.setCursor({ left: plot.valToPos(plot.data[0][index], "x"), top: 10 });
  }

  function draw(curves, figure) {
    const container = figure.querySelector(".plot");
    const columns = curves.flatMap(columnsOf);
    const tables = curves.map((curve, k) => [
      curve.steps, ...columns.filter((column) => column.place === k).map((column) => column.values),
    ]);
    const output = make("output", {});
    const options = optionsOf(columns, container.clientWidth, (plot) => { output.value = describe(plot, columns); });
    const stage = make("div", { className: "plot", tabIndex: 0 });
    stage.setAttribute("role", "group");
    stage.setAttribute("aria-label", container.querySelector("svg").getAttribute("aria-label"));
    const plot = new uPlot(options, uPlot.join(tables), stage);
    const update = (state) => plot.batch(() => {
      columns.forEach((column, k) => plot.setSeries(k + 1, { show: isShown(column, state) }));
    });
    const list = figure.querySelector("figcaption ul");
    const controls = controlsOf(columns, curves, [...list.children].map((item) => item.textContent), update);
    if (curves.length > 1) list.className = "in-print"; // on the screen the checkboxes are the legend
    update(controls.state);
    output.value = describe(plot, columns);
    const reset = make("button", { type: "button" }, "Reset zoom");
    reset.addEventListener("click", () => plot.setData(plot.data));
    stage.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (by) { event.preventDefault(); moveCursor(plot, by); }
    });
    container.replaceWith(stage);
    stage.after(output, make("div", { className: "controls" }, ...controls.parts.slice(0, 1), reset, ...controls.parts.slice(1)));
    new ResizeObserver(() => plot.setSize({ width: stage.clientWidth, height: heightOf(stage.clientWidth) }))
      .observe(stage);
    for (const query of ["(prefers-color-scheme: dark)", "print"]) {
      matchMedia(query).addEventListener("change", () => plot.redraw(false));
    }
  }

  charts.forEach((curves, k) => {
    const figure = document.getElementById(`chart-${k}`); // none where there is nothing to draw
    if (figure) draw(curves, figure);
  });
})();

/* Draws the figures of polyfed with plotly.js: the report and the live page use it alike.

   polyfedFigures.draw(element, figure, options)     draw a figure into an element; a promise
   polyfedFigures.update(element, figure, options)   another figure or other options there; what is not given stays
   polyfedFigures.redraw()                           all of them again, in the colours of the theme at hand
   polyfedFigures.ready = promise                    where plotly.js comes later than this script

   A figure is what Figure.to_json writes; its lists of numbers may be packed as "f4:<base64 of float32>".
   Options: axis (key of the horizontal axis), log (of the vertical one), panels (names to show), hidden (names of
   series), marked (ids of points in a ring), picked (called with {id, name, index, point} of a point clicked). */
"use strict";
const polyfedFigures = (() => {
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
  const MARKERS = ["circle", "square", "diamond", "triangle-up", "triangle-down", "x", "cross", "star"];
  const COLOURS = 8;
  const LETTERS = 26; // of a name beside an axis
  const MARKS = 8; // along a line
  const SHORT = 10; // letters of a label beside a point; longer ones are shown when it is pointed at
  const states = new Map(); // of drawn elements
  const shared = { ready: Promise.resolve() }; // ready: when plotly will be there

  // ---- words and numbers

  const escaped = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const cut = (text) => (text.length > LETTERS ? `${text.slice(0, LETTERS - 1)}…` : text);
  const places = (count) => Array.from({ length: count }, (_, i) => i);

  function numbers(values) {
    if (!values) return [];
    if (typeof values !== "string") return values.map((value) => (value === null ? NaN : value));
    const packed = atob(values.slice(3));
    const bytes = new Uint8Array(packed.length);
    for (let i = 0; i < packed.length; i++) bytes[i] = packed.charCodeAt(i);
    return Array.from(new Float32Array(bytes.buffer));
  }

  function shown(value, unit) {
    if (!Number.isFinite(value)) return "–";
    if (unit === "bytes") {
      const step = Math.min(4, Math.floor(Math.log10(Math.max(1, Math.abs(value))) / 3));
      return `${Number((value / 1000 ** step).toPrecision(4))} ${["B", "kB", "MB", "GB", "TB"][step]}`;
    }
    return String(Number(value.toPrecision(Number.isInteger(value) ? 12 : 5)));
  }

  // ---- colours, as the sheet has them now

  let probe = null;
  let known = {};
  function colour(name) {
    if (!(name in known)) {
      if (!probe) {
        probe = document.createElement("span");
        probe.hidden = true;
        document.body.append(probe);
      }
      probe.style.color = `var(--${name})`;
      known[name] = getComputedStyle(probe).color;
    }
    return known[name];
  }
  const ofSeries = (one) => colour(`c${one.colour % COLOURS}`);
  const through = (rgb, share) =>
    rgb.replace(/^rgba?\(([^)]+)\).*$/, (_, inner) => {
      const [r, g, b] = inner.split(/[\s,/]+/);
      return `rgba(${r},${g},${b},${share})`;
    });
  function scale(diverging) {
    if (diverging)
      return [
        [0, colour("c1")],
        [0.5, colour("card")],
        [1, colour("c0")],
      ];
    return [
      [0, colour("card")],
      [1, colour("c0")],
    ];
  }

  // ---- what all kinds share

  const font = (size) => ({ size, color: colour("soft"), family: getComputedStyle(document.body).fontFamily });
  const columnOf = (figure, one, key) => (one.x && key in one.x ? numbers(figure.columns[one.x[key]]) : []);
  const axisOf = (figure, options) => (figure.x || []).find((axis) => axis.key === options.axis) || (figure.x || [])[0];
  const isShown = (one, options) => !(options.hidden || []).includes(one.name);

  function panelsOf(figure, options) {
    const all =
      figure.panels && figure.panels.length ? figure.panels : [...new Set(figure.series.map((one) => one.panel || ""))];
    const asked = (options.panels || []).filter((name) => all.includes(name));
    return asked.length ? asked : all.slice(0, figure.shown || all.length);
  }

  function line(axis, more) {
    const found = {
      gridcolor: colour("grid"),
      linecolor: colour("line"),
      tickfont: font(11),
      zeroline: false,
      automargin: true,
      showline: true,
      ticks: "",
      fixedrange: false,
      nticks: 6,
      exponentformat: "power",
      ...more,
    };
    if (axis && axis.unit === "bytes" && found.type !== "log")
      Object.assign(found, { tickformat: "~s", ticksuffix: "B" });
    if (found.type === "log") found.minorloglabels = "complete"; // 0.2, 0.3, and not 2, 3
    if (axis && axis.words)
      Object.assign(found, {
        tickmode: "array",
        tickvals: axis.words.map((_, i) => i),
        ticktext: axis.words.map(escaped),
        range: [-0.5, axis.words.length - 0.5],
      });
    return found;
  }
  const titled = (text) => ({ text: escaped(text), font: font(12), standoff: 8 });

  const onPaper = () => document.documentElement.classList.contains("paper");

  function base(height, more) {
    return {
      height: onPaper() ? 0.75 * height : height,
      autosize: true,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: font(12),
      margin: { l: 8, r: 12, t: 26, b: 8 },
      showlegend: false,
      hovermode: "closest",
      dragmode: "zoom",
      hoverlabel: {
        bgcolor: colour("card"),
        bordercolor: colour("soft"),
        font: { ...font(12), color: colour("ink") },
        namelength: -1,
      },
      ...more,
    };
  }

  function marks(one, options, size) {
    const ringed = (one.ids || []).map((id) => (options.marked || []).includes(id));
    const some = ringed.some(Boolean);
    return {
      symbol: MARKERS[(one.marker || 0) % MARKERS.length],
      color: ofSeries(one),
      size: some ? ringed.map((yes) => (yes ? size + 5 : size)) : size,
      line: { color: colour("ink"), width: some ? ringed.map((yes) => (yes ? 2.5 : 0)) : 0 },
    };
  }

  // ---- lines, points and bars: small multiples

  function band(one, x, y, low, high, where) {
    const whole = places(y.length).filter((i) => Number.isFinite(low[i]) && Number.isFinite(high[i]));
    const back = [...whole].reverse();
    return {
      type: "scatter",
      mode: "lines",
      x: [...whole.map((i) => x[i]), ...back.map((i) => x[i])],
      y: [...whole.map((i) => high[i]), ...back.map((i) => low[i])],
      fill: "toself",
      line: { width: 0 },
      fillcolor: through(ofSeries(one), 0.16),
      hoverinfo: "skip",
      ...where,
    };
  }

  function hover(one, axis, upright) {
    const along = axis ? `<br>${escaped(axis.label)}: %{x${axis.unit === "bytes" ? ":.4~s" : ":.6~g"}}` : "";
    const name = one.labels ? "%{text}" : "%{fullData.name}";
    return `${name}<br>${escaped(upright.label)}: %{y:.5~g}${along}<extra></extra>`;
  }

  function curve(figure, one, options, where) {
    const axis = axisOf(figure, options);
    const x = columnOf(figure, one, axis.key);
    const y = numbers(one.y);
    const few = y.filter(Number.isFinite).length < 2; // a line of one point cannot be seen
    const named = figure.kind === "lines" && !one.faint; // lines are told apart by their marks too
    const modes = { line: few || named ? "lines+markers" : "lines", points: "markers", both: "lines+markers" };
    const beside =
      figure.kind === "points" &&
      one.labels &&
      one.labels.length <= 24 &&
      one.labels.every((label) => label.length <= SHORT);
    const trace = {
      type: "scatter",
      mode: modes[one.mode || "line"] + (beside ? "+text" : ""),
      x,
      y,
      name: escaped(one.name),
      opacity: one.faint ? 0.4 : 1,
      marker: {
        ...marks(one, options, figure.kind === "points" ? 9 : one.mode === "line" ? 6 : 5),
        ...(named && one.mode !== "points" && one.mode !== "both" ? { maxdisplayed: MARKS } : {}),
      },
      line: { color: ofSeries(one), width: one.faint ? 1.2 : 2, dash: DASHES[(one.dash || 0) % DASHES.length] },
      hovertemplate: hover(one, axis, figure.y),
      connectgaps: true,
      ...where,
    };
    if (one.labels)
      Object.assign(trace, { text: one.labels.map(escaped), textposition: "top center", textfont: font(11) });
    if (one.ids) trace.customdata = one.ids;
    const low = numbers(one.low);
    const high = numbers(one.high);
    if (!low.length) return [trace];
    if (figure.kind === "lines") return [band(one, x, y, low, high, where), trace];
    trace.error_y = whiskers(one, y, low, high);
    return [trace];
  }

  function whiskers(one, y, low, high) {
    const reach = (values) => values.map((value, i) => Math.abs(value - y[i]) || 0);
    return {
      type: "data",
      symmetric: false,
      array: reach(high),
      arrayminus: reach(low),
      color: colour("soft"),
      thickness: 1.2,
      width: 3,
    };
  }

  function bars(figure, one, options, where) {
    const y = numbers(one.y);
    const low = numbers(one.low);
    const trace = {
      type: "bar",
      x: places(y.length),
      y,
      name: escaped(one.name),
      marker: { color: ofSeries(one), line: { width: 0 } },
      opacity: one.faint ? 0.5 : 1,
      text: one.labels ? one.labels.map(escaped) : undefined,
      textposition: "none",
      customdata: figure.categories.map(escaped),
      ...where,
      hovertemplate: `%{customdata}<br>%{fullData.name}: %{y:.5~g}${one.labels ? "<br>%{text}" : ""}<extra></extra>`,
    };
    if (low.length) trace.error_y = whiskers(one, y, low, numbers(one.high));
    return [trace];
  }

  // Means with whiskers: series stand side by side within a category.
  function dots(figure, one, options, where) {
    const names = [...new Set(figure.series.filter((other) => isShown(other, options)).map((other) => other.name))];
    const aside = ((names.indexOf(one.name) - (names.length - 1) / 2) * 0.6) / Math.max(1, names.length);
    const [trace] = bars(figure, one, options, where);
    return [
      {
        ...trace,
        type: "scatter",
        mode: "markers",
        x: trace.x.map((place) => place + aside),
        marker: marks(one, options, 9),
      },
    ];
  }

  function grid(count, width) {
    const columns = Math.max(1, Math.min(count, count === 4 ? 2 : 3, Math.floor(width / 230)));
    return { columns, rows: Math.ceil(count / columns) };
  }

  function domains(place, { columns, rows }, height, gap) {
    const across = columns > 1 ? 0.075 : 0;
    const down = rows > 1 ? gap / height : 0;
    const wide = (1 - across * (columns - 1)) / columns;
    const tall = (1 - down * (rows - 1)) / rows;
    const [column, row] = [place % columns, Math.floor(place / columns)];
    const left = column * (wide + across);
    const top = 1 - row * (tall + down);
    return { x: [left, Math.min(1, left + wide)], y: [Math.max(0, top - tall), top], column, row };
  }

  function names(figure, width) {
    const many = figure.categories.length;
    const step = Math.max(1, Math.ceil(many / Math.max(4, width / 22)));
    const at = places(many).filter((i) => i % step === 0);
    const long = Math.max(...figure.categories.map((name) => cut(name).length)) * many > width / 7;
    return {
      tickmode: "array",
      tickvals: at,
      ticktext: at.map((i) => escaped(cut(figure.categories[i]))),
      tickangle: long ? -40 : 0,
    };
  }

  // A few rounds: no marks between them.
  function whole(figure) {
    const last = Math.max(0, ...figure.series.slice(0, 400).map((one) => columnOf(figure, one, "round").at(-1) || 0));
    return last <= 8 ? { tick0: 0, dtick: 1 } : {};
  }

  // The least and the most of a panel's values above a floor.
  function ends(figure, options, panel, above) {
    const there = figure.series.filter((one) => (one.panel || "") === panel && isShown(one, options));
    let [least, most] = [Infinity, -Infinity];
    for (const one of there)
      for (const values of [one.y, one.low, one.high])
        for (const value of numbers(values))
          if (Number.isFinite(value) && value > above) [least, most] = [Math.min(least, value), Math.max(most, value)];
    return [least, most];
  }

  // Around curves that all stay at one value: as little as its size asks for, and not from -1 to 1 about it.
  function around(figure, options, panel) {
    const [least, most] = ends(figure, options, panel, -Infinity);
    if (!Number.isFinite(least) || most - least > 1e-6 * Math.abs(most)) return {};
    const room = 0.2 * Math.abs(most);
    return { range: room ? [least - room, most + room] : [-0.05, 1] };
  }

  // Of few decades 0.2, 0.5, 1; of more of them 10, 100.
  function decades(figure, options, panel) {
    const [least, most] = ends(figure, options, panel, 0);
    return most / least < 1000 ? { dtick: most / least < 4 ? "D1" : "D2", tickformat: "~g" } : {};
  }

  function horizontal(figure, options, width, axis) {
    const spare = Math.max(0, (3 - (figure.categories || []).length) / 2); // a few bars are no walls
    if (figure.categories && figure.categories.length)
      return line(null, {
        ...names(figure, width),
        showgrid: false,
        range: [-0.6 - spare, figure.categories.length - 0.4 + spare],
      });
    const fixed = !axis.log && axis.low !== undefined && axis.high !== undefined;
    const more = fixed ? { range: [axis.low, axis.high] } : axis.key === "round" ? whole(figure) : {};
    const log = { type: "log", dtick: "D2", tickformat: "~g" }; // 0.02, 0.05, 0.1
    return line(axis, axis.log ? log : { type: "linear", ...more });
  }

  function vertical(figure, options, axis) {
    const log = options.log === undefined ? axis.log : options.log;
    const found = line(axis, { type: log ? "log" : "linear" });
    if (!log && figure.kind === "bars") found.rangemode = "tozero";
    if (!log && axis.low !== undefined && axis.high !== undefined) found.range = [axis.low, axis.high];
    return found;
  }

  const MAKERS = { lines: curve, points: curve, bars, dots };

  function multiples(figure, options, width) {
    const panels = panelsOf(figure, options);
    const shape = grid(panels.length, width);
    const height = panels.length === 1 ? 360 : 80 + shape.rows * 225;
    const layout = base(height, { annotations: [], barmode: figure.stacked ? "stack" : "group", bargap: 0.25 });
    const data = [];
    panels.forEach((panel, place) => {
      const end = place ? String(place + 1) : "";
      const area = domains(place, shape, height, figure.panel_axes ? 84 : 62);
      const last = place + shape.columns >= panels.length;
      const own = figure.panel_axes && Object.hasOwn(figure.panel_axes, panel) ? figure.panel_axes[panel] : null;
      const [across, up] = own || [axisOf(figure, options), figure.y];
      const x = { ...horizontal(figure, options, width / shape.columns, across), domain: area.x, anchor: `y${end}` };
      layout[`xaxis${end}`] = { ...x, title: across && (last || own) ? titled(across.label) : undefined };
      if (place && !own) layout[`xaxis${end}`].matches = "x";
      layout[`yaxis${end}`] = {
        ...vertical(figure, options, up),
        domain: area.y,
        anchor: `x${end}`,
        title: own || !area.column ? titled(up.label) : undefined,
      };
      const upright = layout[`yaxis${end}`];
      if (figure.kind === "lines" && !upright.range)
        Object.assign(upright, (upright.type === "log" ? decades : around)(figure, options, panel));
      if (panel) layout.annotations.push(heading(panel, area));
      for (const one of figure.series) {
        if ((one.panel || "") === panel && isShown(one, options))
          data.push(...MAKERS[figure.kind](figure, one, options, { xaxis: `x${end}`, yaxis: `y${end}` }));
      }
    });
    return { data, layout };
  }

  const heading = (text, area) => ({
    text: `<b>${escaped(cut(text))}</b>`,
    x: area.x[0],
    y: area.y[1],
    xref: "paper",
    yref: "paper",
    xanchor: "left",
    yanchor: "bottom",
    yshift: 3,
    showarrow: false,
    font: { ...font(12), color: colour("ink") },
  });

  // ---- the other kinds

  function heatmap(figure, options, width) {
    const rows = figure.rows.length;
    const height = Math.max(
      300,
      Math.min(900, 110 + rows * Math.max(9, Math.min(40, (width - 190) / figure.categories.length))),
    );
    const z = figure.matrix.map(numbers);
    const most = Math.max(...z.flat().filter(Number.isFinite).map(Math.abs), 1e-300);
    const step = Math.max(1, Math.ceil(rows / (height / 16)));
    const at = places(rows).filter((i) => i % step === 0);
    const trace = {
      type: "heatmap",
      z,
      x: places(figure.categories.length),
      y: places(rows),
      colorscale: scale(figure.diverging),
      xgap: 1,
      ygap: 1,
      customdata: figure.rows.map((row) => figure.categories.map((name) => `${escaped(row)}, ${escaped(name)}`)),
      hovertemplate: "%{customdata}<br>%{z:.5~g}<extra></extra>",
      colorbar: {
        thickness: 10,
        outlinewidth: 0,
        tickfont: font(11),
        title: { text: escaped(figure.y.label), font: font(12), side: "right" },
      },
    };
    if (figure.diverging) Object.assign(trace, { zmin: -most, zmax: most, zmid: 0 });
    const upright = {
      tickmode: "array",
      tickvals: at,
      ticktext: at.map((i) => escaped(cut(figure.rows[i]))),
      autorange: "reversed",
    };
    const layout = base(height, {
      xaxis: line(null, { ...names(figure, width - 160), showgrid: false, showline: false }),
      yaxis: line(null, { ...upright, showgrid: false, showline: false }),
    });
    return { data: [trace], layout };
  }

  const valueAt = (axis, share) =>
    axis && axis.low !== undefined && axis.high !== undefined ? axis.low + share * (axis.high - axis.low) : share;

  function readings(figure, one) {
    const y = numbers(one.y);
    return y.map((share, i) => `${escaped(figure.categories[i])}: ${shown(valueAt((figure.axes || [])[i], share))}`);
  }

  function radar(figure, options, width) {
    const longest = Math.max(...figure.categories.map((name) => cut(name).length));
    const side = Math.max(60, Math.min(7 * longest, width / 3.5)); // names stand beside the circle
    const round = (values) => [...values, values[0]];
    const data = figure.series
      .filter((one) => isShown(one, options))
      .map((one) => ({
        type: "scatterpolar",
        mode: "lines+markers",
        r: round(numbers(one.y)),
        theta: round(places(figure.categories.length).map((i) => (360 * i) / figure.categories.length)),
        text: round(readings(figure, one)),
        name: escaped(one.name),
        hovertemplate: "%{fullData.name}<br>%{text}<extra></extra>",
        fill: "toself",
        fillcolor: through(ofSeries(one), 0.08),
        opacity: one.faint ? 0.5 : 1,
        marker: marks(one, options, 6),
        line: { color: ofSeries(one), width: 2, dash: DASHES[(one.dash || 0) % DASHES.length] },
      }));
    const angular = {
      tickmode: "array",
      tickvals: places(figure.categories.length).map((i) => (360 * i) / figure.categories.length),
      direction: "clockwise",
      rotation: 90,
      ticktext: figure.categories.map((name) => escaped(cut(name))),
      gridcolor: colour("grid"),
      linecolor: colour("line"),
      tickfont: { ...font(12), color: colour("ink") },
    };
    const radial = {
      range: [0, 1],
      gridcolor: colour("grid"),
      linecolor: colour("line"),
      tickvals: [0, 0.25, 0.5, 0.75, 1],
      tickfont: font(10),
      angle: 90,
      tickangle: 90,
    };
    return {
      data,
      layout: base(430, {
        margin: { l: side, r: side, t: 40, b: 40 },
        polar: { bgcolor: "rgba(0,0,0,0)", angularaxis: angular, radialaxis: radial },
      }),
    };
  }

  function parallel(figure, options, width) {
    const many = figure.categories.length;
    const data = figure.series
      .filter((one) => isShown(one, options))
      .map((one) => ({
        type: "scatter",
        mode: many <= 24 ? "lines+markers" : "lines",
        x: places(many),
        y: numbers(one.y),
        name: escaped(one.name),
        opacity: one.faint ? 0.4 : 1,
        text: readings(figure, one),
        customdata: one.ids ? places(many).map((i) => one.ids[i] || one.ids[0]) : undefined,
        hovertemplate: "%{fullData.name}<br>%{text}<extra></extra>",
        marker: { ...marks({ ...one, ids: undefined }, options, 6) },
        connectgaps: false,
        line: {
          color: ofSeries(one),
          width: (options.marked || []).some((id) => (one.ids || []).includes(id)) ? 4 : one.faint ? 1.2 : 2,
          dash: DASHES[(one.dash || 0) % DASHES.length],
        },
      }));
    const layout = base(400, {
      annotations: [],
      shapes: places(many).map((i) => ({
        type: "line",
        x0: i,
        x1: i,
        y0: 0,
        y1: 1,
        layer: "below",
        line: { color: colour("line"), width: 1.2 },
      })),
    });
    if (many <= width / 60) {
      places(many).forEach((i) =>
        [0, 1].forEach((end) =>
          layout.annotations.push({
            text: shown(valueAt((figure.axes || [])[i], end)),
            x: i,
            y: end,
            showarrow: false,
            font: font(10),
            yanchor: end ? "bottom" : "top",
            yshift: end ? 2 : -2,
          }),
        ),
      );
    }
    layout.xaxis = line(null, {
      ...names(figure, width),
      showgrid: false,
      showline: false,
      range: [-0.4, many - 0.6],
      ticklabelstandoff: 14,
    });
    layout.yaxis = line(null, {
      range: [-0.06, 1.09],
      showgrid: false,
      showticklabels: false,
      showline: false,
      title: titled(figure.y.label),
    });
    return { data, layout };
  }

  function ternary(figure, options) {
    const data = figure.series
      .filter((one) => isShown(one, options))
      .map((one) => ({
        type: "scatterternary",
        mode: one.mode === "line" ? "lines" : "markers",
        name: escaped(one.name),
        customdata: one.ids,
        opacity: one.faint ? 0.4 : 1,
        a: columnOf(figure, one, "a"),
        b: columnOf(figure, one, "b"),
        c: columnOf(figure, one, "c"),
        text: (one.labels || numbers(one.y).map((value) => `${figure.y.label}: ${shown(value)}`)).map(escaped),
        hovertemplate: "%{fullData.name}<br>%{text}<br>%{a:.3~g}, %{b:.3~g}, %{c:.3~g}<extra></extra>",
        line: { color: ofSeries(one), width: 2 },
        marker: ternaryMarks(figure, one, options),
      }));
    const side = (i) => ({
      title: titled((figure.x[i] || {}).label || figure.categories[i] || ""),
      gridcolor: colour("grid"),
      linecolor: colour("soft"),
      tickfont: font(10),
      nticks: 6,
      min: 0,
    });
    return {
      data,
      layout: base(460, {
        margin: { l: 60, r: 60, t: 50, b: 50 },
        ternary: { sum: 1, bgcolor: "rgba(0,0,0,0)", aaxis: side(0), baxis: side(1), caxis: side(2) },
      }),
    };
  }

  function ternaryMarks(figure, one, options) {
    const found = marks(one, options, 10);
    const values = numbers(one.y);
    if (!values.some(Number.isFinite)) return found;
    const bar = {
      thickness: 10,
      outlinewidth: 0,
      tickfont: font(11),
      title: { text: escaped(figure.y.label), font: font(12), side: "right" },
    };
    return {
      ...found,
      line: { ...found.line, width: Array.isArray(found.line.width) ? found.line.width : 0.8, color: colour("soft") },
      color: values,
      colorscale: "Cividis",
      showscale: true,
      colorbar: bar,
    };
  }

  const KINDS = {
    lines: multiples,
    points: multiples,
    bars: multiples,
    dots: multiples,
    heatmap,
    radar,
    parallel,
    ternary,
  };

  // ---- drawing

  // No bar of plotly's own: it would be out of reach for a keyboard, and has a button that sends data to its makers.
  const CONFIG = {
    displaylogo: false,
    displayModeBar: false,
    responsive: false,
    showTips: false,
    doubleClick: "reset",
  };

  function put(element) {
    const state = states.get(element);
    state.width = element.clientWidth || 600;
    const { data, layout } = KINDS[state.figure.kind](state.figure, state.options, state.width);
    return Plotly.react(
      element,
      data,
      { ...layout, width: state.width, uirevision: JSON.stringify([state.options.axis, state.options.log]) },
      CONFIG,
    );
  }

  const widths = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const state = states.get(target);
      if (state && target.clientWidth && Math.abs(target.clientWidth - state.width) > 1) put(target);
    }
  });

  async function draw(element, figure, options = {}) {
    if (!window.Plotly) await shared.ready; // at once where it is there: before printing nobody waits
    states.set(element, { figure, options, width: 0 });
    element.setAttribute("role", "img");
    element.setAttribute("aria-label", `${figure.title}. ${figure.about}`);
    await put(element);
    element.firstElementChild.setAttribute("aria-hidden", "true"); // the label says it, and the table has the numbers
    const tester = document.getElementById("js-plotly-tester"); // where plotly measures texts
    if (tester) tester.setAttribute("aria-hidden", "true");
    element.on("plotly_click", ({ points }) => {
      const [point] = points;
      const picked = states.get(element).options.picked;
      if (picked) picked({ id: point.customdata, name: point.data.name, index: point.pointNumber, point });
    });
    widths.observe(element);
  }

  async function update(element, figure, options = {}) {
    const state = states.get(element);
    if (!state) return draw(element, figure, options);
    state.figure = figure || state.figure;
    state.options = { ...state.options, ...options };
    element.setAttribute("aria-label", `${state.figure.title}. ${state.figure.about}`);
    return put(element);
  }

  function redraw() {
    known = {};
    for (const element of states.keys()) {
      if (element.isConnected) put(element);
      else states.delete(element);
    }
  }

  const parts = { DASHES, MARKERS, COLOURS, isShown, shown, valueAt, panelsOf, axisOf, columnOf }; // for cards.js
  return Object.assign(shared, { draw, update, redraw, numbers, parts });
})();

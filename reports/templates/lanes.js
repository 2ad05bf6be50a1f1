/* Fills the bars of a lane figure (timeline_lanes.py) for the range of time that is shown. Launches shorter than two
   pixels are merged into blocks, colored by the part with most of their time, so that the number of bars depends on the
   width of the figure and not on the number of launches. */
const fillLanes = (figure, range, pixels) => {
  const { start, duration, lane, kernel, reference, kernels, references, lanes, gaps, parts, longest } = figure.layout.meta;
  const [left, right] = range;
  const least = (2 * (right - left)) / Math.max(pixels, 1);
  const bars = figure.data.map(() => ({ base: [], x: [], y: [], hovertext: [], text: [] }));
  const time = (us) => {
    const [scaled, unit] = us >= 1e6 ? [us / 1e6, "s"] : us >= 1e3 ? [us / 1e3, "ms"] : us >= 1 ? [us, "us"] : [us * 1e3, "ns"];
    return `${Number(scaled.toPrecision(3))} ${unit}`;
  };
  const add = (trace, from, to, y, hover, label) => {
    const bar = bars[trace];
    bar.base.push(from);
    bar.x.push(to - from);
    bar.y.push(y);
    bar.hovertext.push(hover);
    bar.text.push((to - from) / least > 40 ? label : "");
  };
  const close = (block, y, single) => {
    if (!block) return;
    if (block.count === 1) return single(block.first);
    const largest = Object.keys(block.busy).sort((a, b) => block.busy[b] - block.busy[a]);
    const shares = largest.map((trace) => `${figure.data[trace].name} ${time(block.busy[trace])}`).join("<br>");
    add(Number(largest[0]), block.from, Math.max(block.to, block.from + least / 2), y, `${block.count.toLocaleString()} in ${time(block.to - block.from)}<br>${shares}`, "");
  };
  const draw = (starts, durations, traceOf, laneOf, single) => {
    let [low, high] = [0, starts.length];
    while (low < high) { // the first that may reach into the range
      const middle = (low + high) >> 1;
      if (starts[middle] < left - longest) low = middle + 1;
      else high = middle;
    }
    const open = new Map();
    for (let i = low; i < starts.length && starts[i] <= right; i++) {
      const [from, to, y] = [starts[i], starts[i] + durations[i], laneOf(i)];
      if (to < left) continue;
      const block = open.get(y);
      if (to - from < least && block && from - block.from < least) {
        block.to = Math.max(block.to, to);
        block.count += 1;
        block.busy[traceOf(i)] = (block.busy[traceOf(i)] || 0) + durations[i];
        continue;
      }
      close(block, y, single);
      open.delete(y);
      if (to - from >= least) single(i);
      else open.set(y, { from, to, count: 1, first: i, busy: { [traceOf(i)]: durations[i] } });
    }
    open.forEach((block, y) => close(block, y, single));
  };
  draw(start, duration, (i) => kernels[kernel[i]][1], (i) => lanes[lane[i]], (i) => {
    const [name, part] = kernels[kernel[i]];
    const hover = `${name}<br>${time(duration[i])} from ${time(Math.abs(start[i]))}${start[i] < 0 ? " before" : ""}<br>${references[reference[i]]}`;
    add(part, start[i], start[i] + Math.max(duration[i], least / 2), lanes[lane[i]], hover, name);
  });
  const idle = lanes[lanes.length - 1];
  draw(gaps.start, gaps.duration, (i) => parts + gaps.cause[i], () => idle, (i) => {
    const name = figure.data[parts + gaps.cause[i]].name;
    add(parts + gaps.cause[i], gaps.start[i], gaps.start[i] + gaps.duration[i], idle, `${name}<br>${time(gaps.duration[i])}`, ""); // hatching would hide a label
  });
  return figure.data.map((trace, i) => ({ ...trace, ...bars[i] }));
};

/* The figure for a range that was chosen by zooming, or for its first one. */
const zoomLanes = (figure, event, pixels) => {
  const axis = figure.layout.xaxis;
  const zoomed = event && event["xaxis.range[0]"] !== undefined ? [event["xaxis.range[0]"], event["xaxis.range[1]"]] : event && event["xaxis.range"];
  const range = zoomed || (event && event["xaxis.autorange"] ? figure.layout.meta.range : axis.range);
  const layout = { ...figure.layout, xaxis: { ...axis, range, autorange: false }, dragmode: pixels < 500 ? false : "pan" };
  return { data: fillLanes({ ...figure, layout }, range, pixels), layout };
};

//! Charts as inline SVG.

use maud::{Markup, html};

use crate::stats::rounded;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 64.0;
/// Half of a tick's label is beyond the axis.
const RIGHT: f64 = 36.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 44.0;
/// Most that a letter of a label is wide, and about its height.
const LETTER: f64 = 8.0;
/// Height of a line of the legend.
const LEGEND: f64 = 18.0;
/// Where the words of the legend begin.
const LEGEND_LEFT: f64 = LEFT + 48.0;
/// Most letters of a line of the legend, which have room there.
const LEGEND_LETTERS: usize = 76;
/// Number of styles of curves.
const STYLES: usize = 8;
/// Width of the labels of bars.
const BAR_LABELS: f64 = 190.0;
/// Height of a bar, and of the line that it stands on.
const BAR: f64 = 18.0;
const BAR_LINE: f64 = 26.0;

/// An axis, in the units of the points.
pub(super) struct Axis {
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) ticks: Vec<(f64, String)>,
    pub(super) label: String,
}

impl Axis {
    /// Makes an axis of durations on a logarithmic scale: points have the decimal logarithm of nanoseconds.
    pub(super) fn of_durations(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        let (low, high) = if low > high { (3.0, 4.0) } else { (low, high) };
        // At least two ticks, and room above and below.
        let (low, high) = (low - 0.1, (high + 0.1).max(low + 0.5));
        let mut ticks = Vec::new();
        let steps: &[f64] = if high - low > 2.5 {
            &[1.0]
        } else {
            &[1.0, 2.0, 5.0]
        };
        for decade in 0..12 {
            for step in steps {
                let place = f64::from(decade) + step.log10();
                if (low..=high).contains(&place) {
                    ticks.push((place, tick(f64::from(decade), *step)));
                }
            }
        }
        Self {
            low,
            high,
            ticks,
            label: "latency".to_owned(),
        }
    }

    /// Makes an axis of rates in millions a second, from 0.
    pub(super) fn of_rates(highest: f64) -> Self {
        let high = highest.max(0.001) * 1.05;
        // Four to ten ticks.
        let decade = 10_f64.powf(high.log10().floor());
        let step = match high / decade {
            4.0.. => decade,
            2.0.. => decade / 2.0,
            _ => decade / 5.0,
        };
        let ticks = (0..).map(|number| f64::from(number) * step);
        Self {
            low: 0.0,
            high,
            ticks: ticks
                .take_while(|rate| *rate <= high)
                .map(|rate| (rate, format!("{}", rounded(rate))))
                .collect(),
            label: "million frames a second".to_owned(),
        }
    }

    fn place(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }
}

fn tick(decade: f64, step: f64) -> String {
    let ns = step * 10_f64.powf(decade);
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.0} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{:.0} ms", ns / 1e6),
        ns => format!("{:.0} s", ns / 1e9),
    }
}

/// A curve.
pub(super) struct Curve {
    pub(super) label: String,
    /// Number of the style: the same thing has the same in all charts.
    pub(super) style: usize,
    /// Runs of points; between two runs the pen is lifted.
    pub(super) runs: Vec<Vec<(f64, f64)>>,
}

/// Something that happened at a place of the horizontal axis.
pub(super) struct Mark {
    pub(super) at: f64,
    pub(super) label: String,
}

/// Draws curves, and a line across for each mark. `title` says to those who cannot see it what the chart shows.
pub(super) fn chart(title: &str, x: &Axis, y: &Axis, curves: &[Curve], marks: &[Mark]) -> Markup {
    let bottom = HEIGHT - BOTTOM;
    let at_x = |value: f64| LEFT + x.place(value) * (WIDTH - LEFT - RIGHT);
    let at_y = |value: f64| bottom - y.place(value) * (bottom - TOP);
    let entries = legend(curves);
    let count: usize = entries.iter().map(|(_, _, lines)| lines.len()).sum();
    let height = HEIGHT + LEGEND * (count as f64 + 0.5);
    html! {
        svg viewBox=(format!("0 0 {WIDTH} {height}")) role="img" aria-label=(title) {
            @for (value, label) in &y.ticks {
                (line((LEFT, at_y(*value)), (WIDTH - RIGHT, at_y(*value))))
                (text((LEFT - 8.0, at_y(*value) + 4.0), "end", label))
            }
            @for (value, label) in &x.ticks {
                (line((at_x(*value), TOP), (at_x(*value), bottom)))
                (text((at_x(*value), bottom + 16.0), "middle", label))
            }
            (text((LEFT + (WIDTH - LEFT - RIGHT) / 2.0, bottom + 36.0), "middle", &x.label))
            @for mark in marks {
                @let place = short(at_x(mark.at));
                line.mark x1=(place) y1=(short(TOP)) x2=(place) y2=(short(bottom)) { title { (mark.label) } }
            }
            @for (place, label) in labels(marks, at_x) {
                text.marked x=(short(place)) y=(short(TOP + LETTER)) { (label) }
            }
            @for (curve, place, lines) in &entries {
                @let class = format!("curve s{} t{}", curve.style % STYLES, curve.style / STYLES);
                @for run in &curve.runs {
                    polyline class=(class) points=(points(run, at_x, at_y)) {}
                }
                line class=(class) x1=(LEFT) x2=(LEFT + 40.0) y1=(place) y2=(place) {}
                @for (number, words) in lines.iter().enumerate() {
                    text.legend x=(LEGEND_LEFT) y=(place + 4.0 + LEGEND * number as f64) { (words) }
                }
            }
        }
    }
}

/// Returns the curves, the heights of their first lines in the legend, and these lines, which end in the chart.
fn legend(curves: &[Curve]) -> Vec<(&Curve, f64, Vec<String>)> {
    let mut place = HEIGHT + LEGEND * 0.5;
    let entries = curves.iter().map(|curve| {
        let lines = lines(&curve.label, LEGEND_LETTERS);
        let begin = place;
        place += LEGEND * lines.len() as f64;
        (curve, begin, lines)
    });
    entries.collect()
}

/// Divides a text into lines of at most so many letters. A word that is longer has a line of its own.
fn lines(text: &str, letters: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is one from the beginning");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= letters {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// Returns the labels of marks, and where they begin: beside the mark, and only where the one before leaves room.
fn labels(marks: &[Mark], at_x: impl Fn(f64) -> f64) -> Vec<(f64, &str)> {
    let mut free = LEFT;
    let mut all = Vec::new();
    for Mark { at, label } in marks {
        let width = LETTER * label.chars().count() as f64;
        let begin = (at_x(*at) + 3.0).min(WIDTH - width);
        if begin >= free {
            free = begin + width;
            all.push((begin, label.as_str()));
        }
    }
    all
}

/// A bar of parts that add up to 1.
pub(super) struct Bar {
    pub(super) label: String,
    pub(super) parts: Vec<(String, f64)>,
}

/// Draws bars below each other.
pub(super) fn bars(title: &str, bars: &[Bar]) -> Markup {
    let height = BAR_LINE * bars.len() as f64;
    let room = WIDTH - BAR_LABELS - RIGHT;
    html! {
        svg viewBox=(format!("0 0 {WIDTH} {height}")) role="img" aria-label=(title) {
            @for (number, bar) in bars.iter().enumerate() {
                @let top = BAR_LINE * number as f64;
                (text((BAR_LABELS - 8.0, top + 14.0), "end", &bar.label))
                @for (place, (name, share)) in bar.parts.iter().enumerate() {
                    @let before = bar.parts[..place].iter().map(|part| part.1).sum::<f64>();
                    @let left = BAR_LABELS + before * room;
                    @let width = share * room;
                    rect class=(format!("f{}", place % STYLES)) x=(short(left)) y=(short(top)) width=(short(width)) height=(BAR) {}
                    @if *share > 0.15 {
                        text.inside x=(short(left + width / 2.0)) y=(short(top + 13.0)) text-anchor="middle" {
                            (name) " " (format!("{:.1} %", share * 100.0))
                        }
                    }
                }
            }
        }
    }
}

fn line(from: (f64, f64), to: (f64, f64)) -> Markup {
    html! {
        line.grid x1=(short(from.0)) y1=(short(from.1)) x2=(short(to.0)) y2=(short(to.1)) {}
    }
}

fn text(at: (f64, f64), anchor: &str, text: &str) -> Markup {
    html! { text x=(short(at.0)) y=(short(at.1)) text-anchor=(anchor) { (text) } }
}

fn points(run: &[(f64, f64)], x: impl Fn(f64) -> f64, y: impl Fn(f64) -> f64) -> String {
    let points = run
        .iter()
        .map(|&(one, other)| format!("{},{}", short(x(one)), short(y(other))));
    points.collect::<Vec<_>>().join(" ")
}

fn short(place: f64) -> String {
    format!("{place:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_labels_of_curves_have_several_lines_and_those_below_make_room() {
        let curve = |label: &str| Curve {
            label: label.to_owned(),
            style: 0,
            runs: Vec::new(),
        };
        let curves = [&"word ".repeat(20), "short", ""].map(curve);
        let legend = legend(&curves);
        let counts: Vec<usize> = legend.iter().map(|(_, _, lines)| lines.len()).collect();
        assert_eq!(counts, [2, 1, 1]);
        let widest = legend.iter().flat_map(|(_, _, lines)| lines);
        let widest = widest.map(|line| LETTER * line.chars().count() as f64);
        assert!(widest.fold(0.0, f64::max) <= WIDTH - LEGEND_LEFT);
        assert!(LEGEND_LETTERS as f64 * LETTER <= WIDTH - LEGEND_LEFT);
        let places = legend.iter().map(|(_, place, _)| place - HEIGHT);
        assert!(places.eq([0.5, 2.5, 3.5].map(|line| LEGEND * line)));
        assert_eq!(lines("a longer-word", 4), ["a", "longer-word"]);
    }

    #[test]
    fn labels_of_marks_leave_each_other_room_and_end_in_the_chart() {
        let mark = |at| Mark {
            at,
            label: "restart".to_owned(),
        };
        let marks = [100.0, 110.0, 200.0, WIDTH - RIGHT].map(mark);
        let places = labels(&marks, |at| at).into_iter();
        let places: Vec<f64> = places.map(|(place, _)| place).collect();
        assert_eq!(places, [103.0, 203.0, WIDTH - 7.0 * LETTER]);
    }
}

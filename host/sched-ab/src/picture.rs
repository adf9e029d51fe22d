// SPDX-License-Identifier: GPL-2.0

//! A report as a picture: every sample of every side, and the medians.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

/// What one panel shows: a metric of a workload.
pub struct Panel {
    /// The workload and the metric.
    pub title: [String; 2],
    /// The unit of the values, and which direction is better.
    pub unit: String,
    /// Each side's name, its samples in order, and their median.
    pub sides: Vec<(String, Vec<f64>, f64)>,
}

/// Panels in a row.
const COLUMNS: usize = 4;
/// The size of a panel in pixels.
const SIZE: (u32, u32) = (300, 240);
/// The height of the line that names the sides.
const LEGEND: u32 = 26;
/// How far the dots of a side spread, of the distance between two sides.
const WIDTH: f64 = 0.6;
/// Colours of sides that colour-blind people can tell apart (Okabe and Ito), the base first.
const COLOURS: [RGBColor; 4] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
];

/// Draws the panels as SVG.
///
/// # Errors
///
/// When a value cannot be drawn.
pub fn svg(panels: &[Panel]) -> Result<String> {
    let columns = panels.len().clamp(1, COLUMNS);
    let rows = panels.len().div_ceil(columns).max(1);
    let mut text = String::new();
    {
        let size = (SIZE.0 * columns as u32, LEGEND + SIZE.1 * rows as u32);
        let whole = SVGBackend::with_string(&mut text, size).into_drawing_area();
        whole.fill(&WHITE)?;
        let (top, area) = whole.split_vertically(LEGEND);
        let mut left = 12;
        // The sides of all panels are the same.
        let sides = panels.first().map_or(&[][..], |panel| &panel.sides);
        for (number, (name, ..)) in sides.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            top.draw(&Circle::new((left, 13), 4, colour.filled()))?;
            top.draw(&Text::new(name.clone(), (left + 9, 7), ("sans-serif", 13)))?;
            left += 40 + 9 * name.len() as i32;
        }
        for (panel, area) in panels.iter().zip(area.split_evenly((rows, columns))) {
            draw(panel, &area).map_err(|error| anyhow!("cannot draw: {error}"))?;
        }
        whole.present()?;
    }
    Ok(text)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw(panel: &Panel, area: &Area<'_>) -> Result<(), Box<dyn std::error::Error>> {
    let Panel { title, unit, sides } = panel;
    let samples = || sides.iter().flat_map(|(_, samples, _)| samples);
    let least = samples().copied().fold(f64::INFINITY, f64::min);
    let most = samples().copied().fold(f64::NEG_INFINITY, f64::max);
    let margin = 0.08 * (most - least).max(1e-3 * most);
    for (line, text) in title.iter().enumerate() {
        let at = (12, 6 + 15 * line as i32);
        area.draw(&Text::new(text.clone(), at, ("sans-serif", 13)))?;
    }
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .margin_top(38)
        .y_label_area_size(58)
        .build_cartesian_2d(
            -0.5..sides.len() as f64 - 0.5,
            least - margin..most + margin,
        )?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_labels(5)
        .light_line_style(TRANSPARENT)
        .y_desc(unit)
        .label_style(("sans-serif", 11))
        .draw()?;
    for (number, (_, samples, median)) in sides.iter().enumerate() {
        let (middle, colour) = (number as f64, COLOURS[number % COLOURS.len()]);
        let dots = samples.iter().enumerate().map(|(index, &sample)| {
            // In the order of the rounds, from left to right.
            let part = (index as f64 + 0.5) / samples.len() as f64 - 0.5;
            Circle::new((middle + WIDTH * part, sample), 2, colour.filled())
        });
        chart.draw_series(dots)?;
        let ends = [middle - WIDTH / 2.0, middle + WIDTH / 2.0].map(|x| (x, *median));
        chart.draw_series([PathElement::new(ends.to_vec(), BLACK.stroke_width(2))])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(sides: usize) -> Panel {
        let side = |n: usize| {
            let samples = (0..5)
                .map(|i| 1.0 + n as f64 + f64::from(i) / 10.0)
                .collect();
            (format!("side-{n}"), samples, 1.2 + n as f64)
        };
        Panel {
            title: ["mix -s 4".to_owned(), "late_p99".to_owned()],
            unit: "us, lower is better".to_owned(),
            sides: (0..sides).map(side).collect(),
        }
    }

    #[test]
    fn every_sample_is_a_dot() {
        let text = svg(&[panel(2), panel(4), panel(1), panel(2), panel(3)]).unwrap();
        // Two more name the sides.
        assert_eq!(text.matches("<circle").count(), 5 * (2 + 4 + 1 + 2 + 3) + 2);
        for part in ["mix -s 4", "late_p99", "us, lower is better", "side-1"] {
            assert!(text.contains(part), "{part}");
        }
        assert!(
            text.starts_with("<svg width=\"1200\" height=\"506\""),
            "{}",
            &text[..80]
        );
        assert_eq!(
            text,
            svg(&[panel(2), panel(4), panel(1), panel(2), panel(3)]).unwrap()
        );
    }

    #[test]
    fn equal_samples_and_no_panels_can_be_drawn() {
        let mut flat = panel(1);
        flat.sides[0].1 = vec![7.0; 3];
        assert_eq!(svg(&[flat]).unwrap().matches("<circle").count(), 3 + 1);
        assert!(svg(&[]).unwrap().contains("<svg"));
    }
}

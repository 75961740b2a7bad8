//! The progress bar of many images.

use std::fmt::Write;

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

/// Returns a bar as wide as the terminal.
pub fn bar(total: u64, target: ProgressDrawTarget) -> ProgressBar {
    let style = ProgressStyle::with_template("images   [{wide_bar}] {pos}/{len}{msg}{rate}").expect("it is valid");
    let rate = |state: &ProgressState, text: &mut dyn Write| {
        if state.pos() > 0 {
            let _ = write!(text, " {}", rate(state.per_sec()));
        }
        if state.pos() > 0 && state.len().is_some_and(|len| state.pos() < len) {
            let _ = write!(text, ", {:#} left", HumanDuration(state.eta()));
        }
    };
    ProgressBar::with_draw_target(Some(total), target).with_style(style.progress_chars("=> ").with_key("rate", rate))
}

/// Formats images per second, or seconds per image if that is below one.
pub fn rate(per_second: f64) -> String {
    if per_second >= 1.0 || per_second <= 0.0 {
        format!("{per_second:.1}/s")
    } else {
        format!("{:.1} s each", 1.0 / per_second)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::screen::Screen;
    use super::*;

    #[test]
    fn the_bar_fits_40_columns_and_tells_rate_and_time_left() {
        for columns in [40, 80, 200] {
            let terminal = Screen::new(10, columns);
            let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
            let bar = bar(10_000, target).with_elapsed(Duration::from_secs(100));
            bar.set_position(9_990);
            bar.abandon();
            let shown = terminal.contents();
            assert_eq!((shown.lines().count(), shown.chars().count() <= columns.into()), (1, true), "{shown}");
            assert!(shown.contains("9990/10000"), "{shown}");
        }
    }

    #[test]
    fn the_bar_says_what_the_image_at_work_is_at() {
        let terminal = Screen::new(10, 80);
        let bar = bar(10, ProgressDrawTarget::term_like(Box::new(terminal.clone())));
        bar.set_message(", denoise 2/4");
        bar.abandon();
        assert!(terminal.contents().contains("0/10, denoise 2/4"), "{}", terminal.contents());
    }

    #[test]
    fn slow_images_are_told_in_seconds_each() {
        assert_eq!([rate(12.34), rate(0.25), rate(0.0)], ["12.3/s", "4.0 s each", "0.0/s"]);
    }
}

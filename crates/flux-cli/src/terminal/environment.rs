//! Facts about the terminal from environment variables.

use std::env;

/// The values of the relevant variables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    pub term: String,
    pub term_program: String,
    pub colorterm: String,
    pub no_color: bool,
    pub tmux: bool,
    pub ssh: bool,
}

/// A program between this one and the terminal that passes on only a part of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Multiplexer {
    Tmux,
    /// GNU screen, which displays kitty's query as a title.
    Screen,
}

impl Environment {
    /// Reads the environment of this process.
    pub fn read() -> Self {
        let text = |name: &str| env::var_os(name).unwrap_or_default().to_string_lossy().into_owned();
        Self {
            term: text("TERM"),
            term_program: text("TERM_PROGRAM"),
            colorterm: text("COLORTERM"),
            no_color: !text("NO_COLOR").is_empty(),
            tmux: !text("TMUX").is_empty(),
            ssh: !text("SSH_TTY").is_empty(),
        }
    }

    /// Returns `true` if only text should be shown.
    pub fn wants_text(&self) -> bool {
        self.no_color || matches!(self.term.as_str(), "" | "dumb")
    }

    /// Returns the multiplexer. Over ssh, only TERM shows it.
    pub fn multiplexer(&self) -> Option<Multiplexer> {
        if self.tmux || self.term.starts_with("tmux") {
            Some(Multiplexer::Tmux)
        } else if self.term.starts_with("screen") {
            Some(Multiplexer::Screen)
        } else {
            None
        }
    }

    /// Returns `true` if the terminal is known to support 24-bit colours.
    pub fn has_all_colors(&self) -> bool {
        let knows = ["direct", "kitty", "ghostty", "alacritty", "foot", "wezterm"];
        matches!(self.colorterm.as_str(), "truecolor" | "24bit")
            || knows.iter().any(|name| self.term.contains(name))
            || matches!(self.term_program.as_str(), "vscode" | "iTerm.app" | "WezTerm" | "ghostty")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_term(term: &str) -> Environment {
        Environment { term: term.to_string(), ..Environment::default() }
    }

    #[test]
    fn dumb_terminals_and_no_color_want_text() {
        assert!(with_term("").wants_text() && with_term("dumb").wants_text() && !with_term("xterm").wants_text());
        assert!(Environment { no_color: true, ..with_term("xterm-kitty") }.wants_text());
    }

    #[test]
    fn tmux_and_screen_are_told_apart() {
        assert_eq!(Environment { tmux: true, ..with_term("screen-256color") }.multiplexer(), Some(Multiplexer::Tmux));
        assert_eq!(with_term("tmux-256color").multiplexer(), Some(Multiplexer::Tmux));
        assert_eq!(with_term("screen.xterm-256color").multiplexer(), Some(Multiplexer::Screen));
        assert_eq!(with_term("xterm-256color").multiplexer(), None);
    }

    #[test]
    fn all_colors_are_known_by_any_of_three_variables() {
        assert!(with_term("xterm-kitty").has_all_colors() && !with_term("xterm-256color").has_all_colors());
        assert!(Environment { colorterm: "truecolor".to_string(), ..with_term("xterm") }.has_all_colors());
        assert!(Environment { term_program: "vscode".to_string(), ..with_term("xterm") }.has_all_colors());
        assert!(!Environment { term_program: "Apple_Terminal".to_string(), ..with_term("xterm") }.has_all_colors());
    }
}

//! Colours of terminal output.
//!
//! Invariant: piped output has none unless the user requests colours.
//! Failure: none.

use std::io::IsTerminal;

use anstyle::{AnsiColor, Color, Style};
use clap::ValueEnum;
use crds::vm::PrintableStatus as Word;

/// When to use colours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// Use colours on a terminal.
    #[default]
    Auto,
    /// Always use colours.
    Always,
    /// Never use colours.
    Never,
}

impl When {
    /// Whether standard output gets colours.
    pub(crate) fn is_on(self) -> bool {
        match self {
            Self::Auto => std::io::stdout().is_terminal(),
            Self::Always => true,
            Self::Never => false,
        }
    }
}

/// The colour of a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colour {
    Red,
    Green,
    Yellow,
    Blue,
    Grey,
}

impl Colour {
    /// The text in this colour.
    pub(crate) fn paint(self, text: &str) -> String {
        let style = Style::new().fg_color(Some(Color::Ansi(match self {
            Self::Red => AnsiColor::Red,
            Self::Green => AnsiColor::Green,
            Self::Yellow => AnsiColor::Yellow,
            Self::Blue => AnsiColor::Blue,
            Self::Grey => AnsiColor::BrightBlack,
        })));
        format!("{style}{text}{style:#}")
    }

    /// Green: running; yellow: changing; red: needs attention; blue and grey: off, paused or
    /// suspended.
    pub(crate) const fn for_word(word: Word) -> Self {
        match word {
            Word::Running => Self::Green,
            Word::Starting
            | Word::Stopping
            | Word::Terminating
            | Word::Provisioning
            | Word::WaitingForVolumeBinding => Self::Yellow,
            Word::Paused | Word::Suspended => Self::Blue,
            Word::Stopped => Self::Grey,
            Word::ErrorPvcNotFound
            | Word::DataVolumeError
            | Word::ErrorUnschedulable
            | Word::ErrorClass
            | Word::ErrorImage
            | Word::ErrorStorage
            | Word::ErrorBootstrap
            | Word::ErrorNetwork
            | Word::ErrImagePull
            | Word::ImagePullBackOff
            | Word::InvalidImageName
            | Word::CrashLoopBackOff
            | Word::Unknown => Self::Red,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_end_where_the_text_ends() {
        assert_eq!(
            Colour::for_word(Word::Running).paint("x"),
            "\u{1b}[32mx\u{1b}[0m"
        );
        assert!(When::Always.is_on() && !When::Never.is_on());
    }
}

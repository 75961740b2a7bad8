//! Partial passes: the tokens that a pass computes, if the other tokens have cached keys and values.

use std::ops::Range;

use crate::token_layout::TokenLayout;

/// The computed tokens of a sequence with one sample: the beginning of the text or all of it, and some tokens of the
/// references and of the image.
///
/// They form a sequence of their own, in the same order. Attention reads the other tokens from a
/// [`KeyCache`](crate::transformer::KeyCache), so layers do not depend on the selection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveTokens {
    whole: TokenLayout,
    /// Runs of tokens in order, which do not touch.
    active: Vec<Range<usize>>,
    kept: Vec<Range<usize>>,
}

impl ActiveTokens {
    /// Selects all text, and the tokens after it for which `is_active` returns `true`, counted from the first
    /// reference.
    ///
    /// Panics if there are several samples.
    pub fn new(whole: TokenLayout, is_active: impl Fn(usize) -> bool) -> Self {
        Self::with_text(whole, whole.txt, is_active)
    }

    /// [`ActiveTokens::new`] with only the first `text` tokens of the text.
    ///
    /// Panics if there are several samples, or no text is left.
    pub fn with_text(whole: TokenLayout, text: usize, is_active: impl Fn(usize) -> bool) -> Self {
        assert!(whole.batch == 1 && (1..=whole.txt).contains(&text), "{whole:?}, {text} of the text");
        let (mut active, mut kept) = (Vec::new(), Vec::new());
        for token in 0..whole.tokens() {
            let is_active = token.checked_sub(whole.txt).map_or(token < text, &is_active);
            let runs = if is_active { &mut active } else { &mut kept };
            match runs.last_mut() {
                Some(Range { end, .. }) if *end == token => *end += 1,
                _ => runs.push(token..token + 1),
            }
        }
        Self { whole, active, kept }
    }

    /// Returns the whole sequence.
    pub fn whole(&self) -> TokenLayout {
        self.whole
    }

    /// Returns the sequence of the computed tokens.
    pub fn layout(&self) -> TokenLayout {
        let count = |runs: Vec<Range<usize>>| runs.iter().map(Range::len).sum::<usize>();
        let [txt, context, img] = [self.within(0..self.whole.txt), self.context(), self.image()].map(count);
        TokenLayout { txt, references: context - txt, img, ..self.whole }
    }

    /// Returns the computed tokens, in runs.
    pub fn active(&self) -> &[Range<usize>] {
        &self.active
    }

    /// Returns the cached tokens, in runs.
    pub fn kept(&self) -> &[Range<usize>] {
        &self.kept
    }

    /// Returns the computed tokens of text and references.
    pub fn context(&self) -> Vec<Range<usize>> {
        self.within(0..self.whole.context_rows())
    }

    /// Returns the computed tokens of the image, counted from the image's first token.
    pub fn image(&self) -> Vec<Range<usize>> {
        self.within(self.whole.context_rows()..self.whole.tokens())
    }

    fn within(&self, tokens: Range<usize>) -> Vec<Range<usize>> {
        let inside = |token: usize| token.clamp(tokens.start, tokens.end) - tokens.start;
        let runs = self.active.iter().map(|run| inside(run.start)..inside(run.end));
        runs.filter(|run| !run.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_those_of_the_sequence_and_of_its_parts() {
        // Text 0..3, references 3..7, image 7..12.
        let whole = TokenLayout { references: 4, ..TokenLayout::new(1, 3, 5) };
        let tokens = ActiveTokens::new(whole, |token| [0, 3, 4, 5, 8].contains(&token));
        assert_eq!(tokens.active(), [0..4, 6..9, 11..12]);
        assert_eq!(tokens.kept(), [4..6, 9..11]);
        assert_eq!((tokens.context(), tokens.image()), (vec![0..4, 6..7], vec![0..2, 4..5]));
        assert_eq!(tokens.layout(), TokenLayout { references: 2, img: 3, ..whole });
    }

    #[test]
    fn the_beginning_of_the_text_may_be_computed_alone() {
        let whole = TokenLayout { references: 4, ..TokenLayout::new(1, 3, 5) };
        let tokens = ActiveTokens::with_text(whole, 2, |token| [0, 8].contains(&token));
        assert_eq!((tokens.active(), tokens.kept()), (&[0..2, 3..4, 11..12][..], &[2..3, 4..11][..]));
        assert_eq!(tokens.context(), [0..2, 3..4]);
        assert_eq!(tokens.layout(), TokenLayout { txt: 2, references: 1, img: 1, ..whole });
    }

    #[test]
    fn all_tokens_are_one_run_and_none_leave_the_text() {
        let whole = TokenLayout::new(1, 3, 5);
        let all = ActiveTokens::new(whole, |_| true);
        assert_eq!((all.layout(), all.kept()), (whole, &[][..]));
        let none = ActiveTokens::new(whole, |_| false);
        assert_eq!((none.active(), none.image().len()), (&none.context()[..], 0));
        assert_eq!((none.layout(), none.kept()[0].clone()), (TokenLayout { img: 0, ..whole }, 3..8));
    }
}

//! The tokens of a sequence, and their order in the rows of a tensor.

use crate::error::{Error, Result};

/// The tokens that have queries in attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Queries {
    /// All tokens.
    All,
    /// Image tokens only: the outputs of the other tokens are not read.
    Image,
}

/// The segments of a sequence: text, the reference images one after the other, and the generated image.
///
/// The rows of a tensor are the text of every sample, then the reference images, then the image of every sample. So
/// the text rows of a whole batch are contiguous, and so are the image stream (references and image) and the rows
/// before the image. The tokens of a sample are numbered in the order text, references, image, independent of their
/// rows. Sequences with references are long enough to fill a device alone, so they have one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenLayout {
    /// Number of samples; each attends only to itself.
    pub batch: usize,
    /// Text tokens of one sample.
    pub txt: usize,
    /// Tokens of all reference images; 0 with several samples.
    pub references: usize,
    /// Tokens of one sample's image.
    pub img: usize,
    /// The tokens that have queries.
    pub queries: Queries,
}

impl TokenLayout {
    /// Creates a layout of text and image of `batch` samples, without references. All tokens have queries.
    pub fn new(batch: usize, txt: usize, img: usize) -> Self {
        Self { batch, txt, references: 0, img, queries: Queries::All }
    }

    /// Creates a layout of one sample with `tokens` tokens of one kind.
    pub fn single(tokens: usize) -> Self {
        Self::new(1, 0, tokens)
    }

    /// Restricts queries to the tokens of the image.
    pub fn image_queries(self) -> Self {
        Self { queries: Queries::Image, ..self }
    }

    /// Returns the number of tokens of one sample.
    pub fn tokens(&self) -> usize {
        self.txt + self.image_stream()
    }

    /// Returns the number of tokens of one sample that are not text.
    pub fn image_stream(&self) -> usize {
        self.references + self.img
    }

    /// Returns the rows of a tensor of all tokens.
    pub fn rows(&self) -> usize {
        self.batch * self.tokens()
    }

    /// Returns the number of text rows, which come first.
    pub fn txt_rows(&self) -> usize {
        self.batch * self.txt
    }

    /// Returns the number of rows of text and references, which come before the images.
    pub fn context_rows(&self) -> usize {
        self.rows() - self.img_rows()
    }

    /// Returns the number of image rows, which come last.
    pub fn img_rows(&self) -> usize {
        self.batch * self.img
    }

    /// Returns the first token of a sample that has a query.
    pub fn first_query(&self) -> usize {
        match self.queries {
            Queries::All => 0,
            Queries::Image => self.txt + self.references,
        }
    }

    /// Returns the number of first rows that have keys and values but no queries.
    pub fn rows_without_query(&self) -> usize {
        match self.queries {
            Queries::All => 0,
            Queries::Image => self.context_rows(),
        }
    }

    /// Returns the rows of a tensor of queries.
    pub fn query_rows(&self) -> usize {
        self.rows() - self.rows_without_query()
    }

    /// Returns the row of token `token` of sample `sample`.
    pub fn row(&self, sample: usize, token: usize) -> usize {
        if token < self.txt {
            sample * self.txt + token
        } else {
            self.txt_rows() + sample * self.image_stream() + token - self.txt
        }
    }

    /// Returns the token in row `row`, counted in its own sample.
    pub fn token(&self, row: usize) -> usize {
        if row < self.txt_rows() { row % self.txt } else { self.txt + (row - self.txt_rows()) % self.image_stream() }
    }

    /// Errors if several samples have references.
    pub(crate) fn check(&self, op: &str) -> Result<()> {
        if self.batch == 1 || self.references == 0 {
            return Ok(());
        }
        Err(Error::new(format!("{} samples with references, expected one", self.batch)).at(format!("op `{op}`")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_has_one_row_and_every_row_one_token() {
        for layout in [
            TokenLayout::new(1, 0, 5),
            TokenLayout::new(3, 4, 5),
            TokenLayout::new(2, 3, 0),
            TokenLayout { references: 6, ..TokenLayout::new(1, 4, 5) },
        ] {
            let mut rows: Vec<_> = (0..layout.batch)
                .flat_map(|sample| (0..layout.tokens()).map(move |token| (layout.row(sample, token), token)))
                .collect();
            rows.sort_unstable();
            let expected: Vec<_> = (0..layout.rows()).map(|row| (row, layout.token(row))).collect();
            assert_eq!(rows, expected, "{layout:?}");
        }
    }

    #[test]
    fn the_image_alone_asks_where_nothing_reads_the_rest() {
        let layout = TokenLayout { references: 6, ..TokenLayout::new(1, 4, 5) };
        assert_eq!((layout.context_rows(), layout.query_rows(), layout.first_query()), (10, 15, 0));
        let layout = layout.image_queries();
        assert_eq!((layout.rows_without_query(), layout.query_rows(), layout.first_query()), (10, 5, 10));
        let batch = TokenLayout::new(3, 4, 5).image_queries();
        assert_eq!((batch.rows_without_query(), batch.query_rows(), batch.first_query()), (12, 15, 4));
    }

    #[test]
    fn samples_of_a_batch_have_no_references() {
        assert!(TokenLayout::new(2, 1, 1).check("x").is_ok());
        assert!(TokenLayout { references: 1, ..TokenLayout::new(2, 1, 1) }.check("x").is_err());
    }
}

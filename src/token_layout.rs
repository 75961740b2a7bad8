//! Which tokens a sequence has, and how they lie in the rows of a tensor.

use crate::error::{Error, Result};

/// Which tokens ask queries in attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Queries {
    /// All of them.
    All,
    /// Those of the image alone: nothing reads what the others would become.
    Image,
}

/// The segments of a sequence: text, the reference images one after the other, and the image that is made.
///
/// The rows of a tensor are the text of every sample, then the reference images, then the image of every sample. So the
/// text rows of a whole batch are one block of rows, the image stream (references and image) is another, and so is what
/// lies in front of the image. The tokens of a sample are its text, the references and its image, in this order,
/// wherever they lie. Sequences with references are long enough to fill a device alone, so they are of one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenLayout {
    /// Samples; each attends to itself only.
    pub batch: usize,
    /// Text tokens of one sample.
    pub txt: usize,
    /// Tokens of all reference images; none where there is more than one sample.
    pub references: usize,
    /// Tokens of one sample's image.
    pub img: usize,
    /// Which of them ask queries.
    pub queries: Queries,
}

impl TokenLayout {
    /// Text and image of `batch` samples, without references. All tokens ask queries.
    pub fn new(batch: usize, txt: usize, img: usize) -> Self {
        Self { batch, txt, references: 0, img, queries: Queries::All }
    }

    /// One sample of `tokens` tokens of one kind.
    pub fn single(tokens: usize) -> Self {
        Self::new(1, 0, tokens)
    }

    /// The same tokens, of which only those of the image ask queries.
    pub fn image_queries(self) -> Self {
        Self { queries: Queries::Image, ..self }
    }

    /// Tokens of one sample.
    pub fn tokens(&self) -> usize {
        self.txt + self.image_stream()
    }

    /// Tokens of one sample that are not text.
    pub fn image_stream(&self) -> usize {
        self.references + self.img
    }

    /// Rows of a tensor of all tokens.
    pub fn rows(&self) -> usize {
        self.batch * self.tokens()
    }

    /// Rows of text, which come first.
    pub fn txt_rows(&self) -> usize {
        self.batch * self.txt
    }

    /// Rows of text and references, which come before the images.
    pub fn context_rows(&self) -> usize {
        self.rows() - self.img_rows()
    }

    /// Rows of images, which come last.
    pub fn img_rows(&self) -> usize {
        self.batch * self.img
    }

    /// The first token of a sample that asks a query.
    pub fn first_query(&self) -> usize {
        match self.queries {
            Queries::All => 0,
            Queries::Image => self.txt + self.references,
        }
    }

    /// The first rows, which have keys and values but ask no queries.
    pub fn rows_without_query(&self) -> usize {
        match self.queries {
            Queries::All => 0,
            Queries::Image => self.context_rows(),
        }
    }

    /// Rows of a tensor of queries.
    pub fn query_rows(&self) -> usize {
        self.rows() - self.rows_without_query()
    }

    /// The row of token `token` of sample `sample`.
    pub fn row(&self, sample: usize, token: usize) -> usize {
        if token < self.txt {
            sample * self.txt + token
        } else {
            self.txt_rows() + sample * self.image_stream() + token - self.txt
        }
    }

    /// The token, counted in its own sample, that is in row `row`.
    pub fn token(&self, row: usize) -> usize {
        if row < self.txt_rows() { row % self.txt } else { self.txt + (row - self.txt_rows()) % self.image_stream() }
    }

    /// Errors where several samples have references.
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

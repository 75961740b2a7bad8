//! The split of rows among devices that make one image together.
//!
//! Everything is shared evenly and in the order of ranks. If the count is not divisible, the first ranks have one
//! more; a rank may have none. So a rank and the size of the whole determine the rank's rows.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::token_layout::{Queries, TokenLayout};

/// Returns the share of `count` items that rank `rank` of `world` has.
pub fn share(count: usize, rank: usize, world: usize) -> Range<usize> {
    let (each, more) = (count / world, count % world);
    let first = |rank: usize| rank * each + rank.min(more);
    first(rank)..first(rank + 1)
}

/// Returns the number of `heads` that each of `world` devices has.
///
/// Errors if the heads cannot be shared evenly.
pub fn own_heads(heads: usize, world: usize) -> Result<usize> {
    if world > 0 && heads.is_multiple_of(world) {
        return Ok(heads / world);
    }
    let fitting: Vec<_> = (1..=heads).filter(|world| heads.is_multiple_of(*world)).map(|n| n.to_string()).collect();
    Err(Error::new(format!("{world} devices cannot share {heads} heads of attention evenly"))
        .hint(format!("use one of these numbers of devices: {}", fitting.join(", "))))
}

/// The devices of a group that share the tokens of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Sharing {
    /// All devices: they make one evaluation of a step together.
    #[default]
    Group,
    /// Each half of the devices has a sequence of its own: both evaluations of guidance run at the same time.
    Half,
}

impl Sharing {
    /// Returns the ranks that share a sequence with rank `rank` of `world`.
    ///
    /// Panics if an odd number of ranks is to be halved.
    pub fn ranks(self, rank: usize, world: usize) -> Range<usize> {
        match self {
            Self::Group => 0..world,
            Self::Half => {
                assert!(world.is_multiple_of(2), "{world} ranks cannot be split into halves");
                let half = world / 2;
                rank / half * half..(rank / half + 1) * half
            }
        }
    }
}

/// Rows of one kind: `times` stacked blocks of `units` pieces of `unit` rows each. Every rank has its share of each
/// block's pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct RowGroup {
    times: usize,
    units: usize,
    unit: usize,
}

const NONE: RowGroup = RowGroup { times: 0, units: 0, unit: 0 };

/// The rows of a whole tensor that each rank has, in a tensor of its own, in the order of the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RowSplit {
    /// The first rank of the group that shares the rows. The methods count ranks from it.
    first: usize,
    world: usize,
    kinds: [RowGroup; 3],
}

/// Rows of one rank that are also contiguous in the whole; may be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowSpan {
    /// The rank that has the rows.
    pub rank: usize,
    /// The position in the whole.
    pub whole: Range<usize>,
    /// The position among the rows of the rank.
    pub own: Range<usize>,
}

impl RowSplit {
    /// Creates the split of an image into bands: the image has `units` pieces of `unit` rows.
    pub fn bands(units: usize, unit: usize, world: usize) -> Self {
        Self { first: 0, world, kinds: [RowGroup { times: 1, units, unit }, NONE, NONE] }
    }

    /// Returns the number of devices that share the rows.
    pub fn world(&self) -> usize {
        self.world
    }

    /// Returns the ranks of the group that share the rows.
    pub fn ranks(&self) -> Range<usize> {
        self.first..self.first + self.world
    }

    /// Returns the rows of the whole.
    pub fn rows(&self) -> usize {
        self.kinds.iter().map(|kind| kind.times * kind.units * kind.unit).sum()
    }

    /// Returns the rows of rank `rank`.
    pub fn rows_of(&self, rank: usize) -> usize {
        self.kinds.iter().map(|kind| kind.times * share(kind.units, rank, self.world).len() * kind.unit).sum()
    }

    /// Returns all rows of the whole, in its order.
    pub fn runs(&self) -> Vec<RowSpan> {
        let (mut runs, mut whole, mut own) = (Vec::new(), 0, vec![0; self.world]);
        for kind in self.kinds {
            for _ in 0..kind.times {
                for (rank, own) in own.iter_mut().enumerate() {
                    let rows = share(kind.units, rank, self.world).len() * kind.unit;
                    runs.push(RowSpan { rank, whole: whole..whole + rows, own: *own..*own + rows });
                    (whole, *own) = (whole + rows, *own + rows);
                }
            }
        }
        runs
    }

    /// Returns the rows of rank `rank`, in their order.
    pub fn runs_of(&self, rank: usize) -> impl Iterator<Item = RowSpan> {
        self.runs().into_iter().filter(move |run| run.rank == rank)
    }
}

/// The split of a sequence's tokens: each rank has its share of each sample's text, of the references, and of each
/// sample's image. A rank's tokens are also a sequence with all samples, and the share is the same in every sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenSplit {
    whole: TokenLayout,
    /// The first rank of the group that shares the tokens. The methods count ranks from it.
    first: usize,
    rank: usize,
    world: usize,
}

impl TokenSplit {
    /// Creates the split of `whole` among `world` ranks, for rank `rank`.
    pub fn new(whole: TokenLayout, rank: usize, world: usize) -> Self {
        Self::shared(whole, Sharing::Group, rank, world)
    }

    /// As [`TokenSplit::new`], among the ranks that `sharing` selects.
    pub fn shared(whole: TokenLayout, sharing: Sharing, rank: usize, world: usize) -> Self {
        assert!(rank < world, "rank {rank} of {world}");
        let ranks = sharing.ranks(rank, world);
        Self { whole, first: ranks.start, rank: rank - ranks.start, world: ranks.len() }
    }

    /// Creates a split of `whole` with all tokens on one device.
    pub fn alone(whole: TokenLayout) -> Self {
        Self::new(whole, 0, 1)
    }

    /// Creates a split with all tokens of `whole` on rank `rank` of a group.
    pub fn apart(whole: TokenLayout, rank: usize) -> Self {
        Self { whole, first: rank, rank: 0, world: 1 }
    }

    /// Sets the number of samples, on the same devices.
    pub fn with_batch(self, batch: usize) -> Self {
        Self { whole: TokenLayout { batch, ..self.whole }, ..self }
    }

    /// Restricts queries to the tokens of the image.
    pub fn image_queries(self) -> Self {
        Self { whole: self.whole.image_queries(), ..self }
    }

    /// Returns the split of the image tokens alone, on the same devices.
    pub fn image_alone(self) -> Self {
        Self { whole: TokenLayout { txt: 0, references: 0, ..self.whole }, ..self }
    }

    /// Returns the split of `batch` samples with as many tokens, all of one kind.
    pub fn with_one_kind(self, batch: usize) -> Self {
        Self { whole: TokenLayout::new(batch, 0, self.whole.tokens()), ..self }
    }

    /// Returns the tokens of all ranks.
    pub fn whole(&self) -> TokenLayout {
        self.whole
    }

    /// Returns the tokens of this rank.
    pub fn own(&self) -> TokenLayout {
        let [txt, references, img] = self.tokens().map(|tokens| tokens.len());
        TokenLayout { txt, references, img, ..self.whole }
    }

    /// Returns this rank, counted among the ranks that share the tokens.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of devices that share the tokens.
    pub fn world(&self) -> usize {
        self.world
    }

    /// Returns the ranks of the group that share the tokens.
    pub fn ranks(&self) -> Range<usize> {
        self.first..self.first + self.world
    }

    /// Returns the tokens of this rank in each sample: text, references and image, each counted from the first of its
    /// kind.
    pub fn tokens(&self) -> [Range<usize>; 3] {
        [self.whole.txt, self.whole.references, self.whole.img].map(|count| share(count, self.rank, self.world))
    }

    /// Returns the rows of all tokens.
    pub fn rows(&self) -> RowSplit {
        let TokenLayout { batch, txt, references, img, .. } = self.whole;
        let kind = |units| RowGroup { times: batch, units, unit: 1 };
        RowSplit { first: self.first, world: self.world, kinds: [kind(txt), kind(references), kind(img)] }
    }

    /// Returns the rows of the image tokens alone.
    pub fn image_rows(&self) -> RowSplit {
        let [_, _, images] = self.rows().kinds;
        RowSplit { kinds: [images, NONE, NONE], ..self.rows() }
    }

    /// Returns the rows of tokens that have queries.
    pub fn query_rows(&self) -> RowSplit {
        match self.whole.queries {
            Queries::All => self.rows(),
            Queries::Image => self.image_rows(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_each_other_and_differ_by_one_at_most() {
        assert_eq!([0, 1, 2, 3].map(|rank| share(10, rank, 4)), [0..3, 3..6, 6..8, 8..10]);
        assert_eq!([0, 1, 2].map(|rank| share(1, rank, 3)), [0..1, 1..1, 1..1]);
        assert_eq!(share(7, 0, 1), 0..7);
    }

    #[test]
    fn every_row_belongs_to_one_rank_and_is_the_token_that_it_was() {
        let with_references = TokenLayout { references: 7, ..TokenLayout::new(1, 5, 9) };
        for whole in [TokenLayout::new(3, 5, 6), TokenLayout::single(3), with_references, TokenLayout::new(2, 0, 1)] {
            for world in [1, 2, 4] {
                let split = TokenSplit::new(whole, 0, world);
                let runs = split.rows().runs();
                let rows: Vec<usize> = runs.iter().flat_map(|run| run.whole.clone()).collect();
                assert_eq!(rows, (0..whole.rows()).collect::<Vec<_>>(), "{whole:?}, {world}");
                assert_eq!(split.rows().rows(), whole.rows());
                for rank in 0..world {
                    let split = TokenSplit::new(whole, rank, world);
                    let own = split.own();
                    let [txt, references, img] = split.tokens();
                    let tokens = txt
                        .chain(references.map(|token| whole.txt + token))
                        .chain(img.map(|token| whole.txt + whole.references + token));
                    let tokens: Vec<usize> = tokens.collect();
                    let mut next = 0;
                    for run in split.rows().runs_of(rank) {
                        assert_eq!((run.own.start, run.own.len()), (next, run.whole.len()));
                        for (own_row, row) in run.own.clone().zip(run.whole) {
                            assert_eq!(tokens[own.token(own_row)], whole.token(row), "{whole:?}, {rank} of {world}");
                        }
                        next = run.own.end;
                    }
                    assert_eq!((next, split.rows().rows_of(rank)), (own.rows(), own.rows()));
                    assert_eq!(split.image_rows().rows_of(rank), own.img_rows());
                    let queries = split.image_queries();
                    assert_eq!(queries.query_rows().rows_of(rank), queries.own().query_rows());
                }
            }
        }
    }

    #[test]
    fn halves_have_sequences_of_their_own() {
        let layout = TokenLayout::new(1, 5, 9);
        for (rank, ranks) in [(0, 0..2), (1, 0..2), (2, 2..4), (3, 2..4)] {
            let (half, alone) =
                (TokenSplit::shared(layout, Sharing::Half, rank, 4), TokenSplit::new(layout, rank % 2, 2));
            assert_eq!(
                (half.ranks(), half.rows().ranks(), half.image_rows().ranks()),
                (ranks.clone(), ranks.clone(), ranks)
            );
            assert_eq!((half.own(), half.tokens(), half.rank()), (alone.own(), alone.tokens(), rank % 2));
        }
        let one = TokenSplit::shared(layout, Sharing::Half, 1, 2);
        assert_eq!((one.own(), one.world(), one.ranks()), (layout, 1, 1..2));
    }

    #[test]
    fn bands_are_whole_pieces() {
        let bands = RowSplit::bands(5, 6, 2);
        assert_eq!((bands.rows(), bands.rows_of(0), bands.rows_of(1)), (30, 18, 12));
        assert_eq!(bands.runs_of(1).next().map(|run| (run.whole, run.own)), Some((18..30, 0..12)));
    }

    #[test]
    fn heads_that_cannot_be_shared_name_the_numbers_that_can() {
        assert_eq!(own_heads(24, 8).unwrap(), 3);
        let text = own_heads(24, 5).unwrap_err().to_string();
        assert!(text.contains("5 devices") && text.contains("24 heads"), "{text}");
        assert!(text.contains("1, 2, 3, 4, 6, 8, 12, 24"), "{text}");
    }
}

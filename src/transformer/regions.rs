//! Regional prompts: texts that only the image tokens of their regions see.
//!
//! Image tokens see all image and reference tokens, the prompt, and the texts of their regions. The prompt sees itself
//! and all image and reference tokens. The text of a region sees itself and the image tokens of its region.
//!
//! Only attention differs, and it needs no mask: rows that see the same tokens are contiguous, and each such group is
//! one call of the usual op. The rows are in this order:
//!
//! ```text
//! texts of regions | prompt | references | image tokens without a region | image tokens by their set of regions
//!                  '-------------------------- common: seen by all but the texts of regions --------------------'
//! ```
//!
//! Positions do not depend on this order: the prompt has those that it has without regions, and the texts of regions
//! follow it.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Transformer, position_ids};
use crate::backend::Backend;
use crate::error::Result;
use crate::ops::{KeyValues, Mask, Rope, TokenLayout};
use crate::tensor::Tensor;

/// The regions of an image.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RegionMap {
    /// Tokens of the text of each region.
    pub texts: Vec<usize>,
    /// For each image token, row by row, a bit for each of its regions.
    pub tokens: Vec<u32>,
}

impl RegionMap {
    /// Returns the tokens of all texts.
    pub fn text_tokens(&self) -> usize {
        self.texts.iter().sum()
    }
}

/// Rows with queries that see the same keys.
#[derive(Debug)]
struct Group {
    queries: Range<usize>,
    /// Visible rows, which contain the queries.
    own: Range<usize>,
    /// Further visible rows.
    others: Vec<Range<usize>>,
}

/// The order of the rows of a sequence with regions, and the keys that they see.
#[derive(Debug)]
pub struct Regions {
    map: RegionMap,
    /// In the order of the rows.
    groups: Vec<Group>,
    /// Image tokens in the order of their rows.
    sorted: Vec<Range<usize>>,
    /// Rows among those of the image, in the order of the tokens.
    unsorted: Vec<Range<usize>>,
}

impl Regions {
    /// Creates the order of a sequence of one sample. Its text tokens are those of all texts.
    ///
    /// Panics if the layout differs from the map.
    pub fn new(map: RegionMap, layout: TokenLayout) -> Self {
        assert_eq!((layout.batch, layout.img), (1, map.tokens.len()), "tokens of an image with regions");
        let mut sets = BTreeMap::<u32, Vec<usize>>::from([(0, Vec::new())]);
        for (token, set) in map.tokens.iter().enumerate() {
            sets.entry(*set).or_default().push(token);
        }
        let mut end = 0;
        let mut next = |count: usize| {
            end += count;
            end - count..end
        };
        let texts: Vec<_> = map.texts.iter().map(|tokens| next(*tokens)).collect();
        let prompt = next(layout.txt - map.text_tokens() + layout.references);
        let images: Vec<_> = sets.iter().map(|(set, tokens)| (*set, next(tokens.len()))).collect();
        let common = prompt.start..end;
        let has = |set: u32, region: usize| set >> region & 1 == 1;
        let text_groups = texts.iter().enumerate().map(|(region, text)| {
            let others = images.iter().filter(|(set, _)| has(*set, region)).map(|(_, rows)| rows.clone());
            Group { queries: text.clone(), own: text.clone(), others: joined(others) }
        });
        let image_groups = images.iter().map(|(set, rows)| {
            let others = (0..texts.len()).filter(|region| has(*set, *region)).map(|region| texts[region].clone());
            let queries = if *set == 0 { prompt.start..rows.end } else { rows.clone() };
            Group { queries, own: common.clone(), others: joined(others) }
        });
        let order: Vec<usize> = sets.values().flatten().copied().collect();
        let mut rows = vec![0; order.len()];
        order.iter().enumerate().for_each(|(row, token)| rows[*token] = row);
        let one_by_one = |places: Vec<usize>| joined(places.into_iter().map(|place| place..place + 1));
        Self {
            groups: text_groups.chain(image_groups).collect(),
            sorted: one_by_one(order),
            unsorted: one_by_one(rows),
            map,
        }
    }

    /// Brings rows of image tokens from the order of the image to that of the sequence.
    ///
    /// Errors if memory runs out.
    pub(super) fn sort<B: Backend>(&self, image: &Tensor<B>) -> Result<Tensor<B>> {
        image.copy_runs(&self.sorted)
    }

    /// Undoes [`Regions::sort`].
    ///
    /// Errors if memory runs out.
    pub(super) fn unsort<B: Backend>(&self, image: &Tensor<B>) -> Result<Tensor<B>> {
        image.copy_runs(&self.unsorted)
    }

    /// Computes [`Tensor::attention`] of a sequence of one sample in which rows see only the tokens of their regions.
    ///
    /// Errors as [`Tensor::attention`].
    pub(super) fn attention<B: Backend>(
        &self,
        q: Tensor<B>,
        [k, v]: [&Tensor<B>; 2],
        head_dim: usize,
        layout: TokenLayout,
    ) -> Result<Tensor<B>> {
        let (skipped, mut rest) = (layout.rows_without_query(), q);
        let mut parts: Vec<Tensor<B>> = Vec::new();
        for Group { queries, own, others } in &self.groups {
            let count = queries.end.saturating_sub(queries.start.max(skipped));
            if count == 0 {
                continue;
            }
            let (q, below) = rest.split_rows(count);
            rest = below;
            // Without a mask, only the numbers of rows matter.
            let layout = TokenLayout { references: own.len() - count, ..TokenLayout::single(count) }.image_queries();
            let [k_own, v_own] = [k, v].map(|x| x.row_view(own.clone()));
            let part = match &others[..] {
                [] => q.attention(&k_own, &v_own, head_dim, layout, Mask::None),
                _ => {
                    let others = KeyValues { k: rows(k, others)?, v: rows(v, others)? };
                    q.attention_cached(&k_own, &v_own, &others, head_dim, layout)
                }
            }?;
            // Parts that overwrote their queries are one tensor already.
            match parts.pop() {
                Some(last) => match Tensor::adjacent_rows(last, part) {
                    Ok(both) => parts.push(both),
                    Err((last, part)) => parts.extend([last, part]),
                },
                None => parts.push(part),
            }
        }
        match <[_; 1]>::try_from(parts) {
            Ok([only]) => Ok(only),
            Err(parts) => Tensor::concat_rows(&parts.iter().collect::<Vec<_>>()),
        }
    }
}

impl<B: Backend> Transformer<B> {
    /// [`Transformer::rope`] of a sequence with regions: a row for each token, in the order of the sequence.
    pub fn rope_of_regions(
        &self,
        regions: &Regions,
        layout: TokenLayout,
        references: &[[usize; 2]],
        image: [usize; 2],
    ) -> Result<Rope<B>> {
        let all = position_ids(&self.config, layout.txt, references, image);
        let (texts, context) = (layout.txt - regions.map.text_tokens()..layout.txt, layout.context_rows());
        let sorted = regions.sorted.iter().map(|run| context + run.start..context + run.end);
        let order = [texts.clone(), 0..texts.start, layout.txt..context].into_iter().chain(sorted);
        self.rope_at(&order.flat_map(|run| all[run].to_vec()).collect::<Vec<_>>())
    }
}

/// Returns some runs of rows as one tensor.
fn rows<B: Backend>(x: &Tensor<B>, runs: &[Range<usize>]) -> Result<Tensor<B>> {
    match runs {
        [only] => Ok(x.row_view(only.clone())),
        _ => x.copy_runs(runs),
    }
}

/// Joins ranges that touch, and leaves out empty ones.
fn joined(ranges: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for range in ranges.filter(|range| !range.is_empty()) {
        match runs.last_mut() {
            Some(run) if run.end == range.start => run.end = range.end,
            _ => runs.push(range),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Memory;
    use crate::backend::cpu::{Cpu, Precision};

    const HEAD_DIM: usize = 8;
    const COLS: usize = 2 * HEAD_DIM;

    fn values(rows: usize, seed: usize) -> Vec<f32> {
        let value = |i: usize| ((seed + i) * 7919 % 1009) as f32 / 504.5 - 1.0;
        (0..rows * COLS).map(value).collect()
    }

    /// Attention with a mask as a matrix; `sees(query, key)`.
    fn dense([q, k, v]: [&[f32]; 3], sees: impl Fn(usize, usize) -> bool) -> Vec<f32> {
        let (rows, mut out) = (q.len() / COLS, vec![0.0; q.len()]);
        let row = |x: &[f32], row: usize, head: usize| x[row * COLS + head * HEAD_DIM..][..HEAD_DIM].to_vec();
        for (query, head) in (0..rows).flat_map(|query| [(query, 0), (query, 1)]) {
            let own = row(q, query, head);
            let product = |key| own.iter().zip(row(k, key, head)).map(|(a, b)| f64::from(a * b)).sum::<f64>();
            let keys = (0..rows).filter(|key| sees(query, *key));
            let weights: Vec<_> = keys.map(|key| (key, (product(key) / (HEAD_DIM as f64).sqrt()).exp())).collect();
            let sum: f64 = weights.iter().map(|(_, weight)| weight).sum();
            for (key, weight) in weights {
                let to = &mut out[query * COLS + head * HEAD_DIM..][..HEAD_DIM];
                to.iter_mut().zip(row(v, key, head)).for_each(|(to, v)| *to += (weight / sum) as f32 * v);
            }
        }
        out
    }

    /// The token of a row, before image tokens are sorted.
    #[derive(Clone, Copy, PartialEq)]
    enum Token {
        Text(usize),
        Common,
        Image(u32),
    }

    impl Token {
        fn sees(self, key: Self) -> bool {
            match (self, key) {
                (Self::Text(own), Self::Text(other)) => own == other,
                (Self::Text(region), Self::Image(set)) | (Self::Image(set), Self::Text(region)) => {
                    set >> region & 1 == 1
                }
                (Self::Text(_), Self::Common) | (Self::Common, Self::Text(_)) => false,
                _ => true,
            }
        }
    }

    fn expect_dense(texts: &[usize], prompt: usize, references: usize, sets: Vec<u32>) {
        let txt = texts.iter().sum::<usize>() + prompt;
        let layout = TokenLayout { references, ..TokenLayout::new(1, txt, sets.len()) };
        let of_texts = texts.iter().enumerate().flat_map(|(region, count)| vec![Token::Text(region); *count]);
        let tokens: Vec<_> = of_texts
            .chain(vec![Token::Common; prompt + references])
            .chain(sets.iter().map(|set| Token::Image(*set)))
            .collect();
        let regions = Regions::new(RegionMap { texts: texts.to_vec(), tokens: sets }, layout);
        let qkv = [1, 2, 3].map(|seed| values(layout.rows(), 1000 * seed));
        let expected = dense(qkv.each_ref().map(Vec::as_slice), |query, key| tokens[query].sees(tokens[key]));

        let (cpu, context) = (Cpu::new(Precision::F32), layout.context_rows());
        let [q, k, v] = qkv.map(|values| {
            let all = cpu.upload(&values, layout.rows(), COLS).unwrap();
            let image = regions.sort(&all.row_view(context..all.rows())).unwrap();
            Tensor::concat_rows(&[&all.row_view(0..context), &image]).unwrap()
        });
        let image_of =
            |x: &Tensor<Cpu>, from: usize| cpu.download(&regions.unsort(&x.row_view(from..x.rows())).unwrap()).unwrap();
        let near = |got: &[f32], expected: &[f32]| {
            assert_eq!(got.len(), expected.len());
            let off = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off < 1e-5, "{layout:?}: off by {off}");
        };
        let (images, all) = (q.row_view(context..q.rows()), q.row_view(0..q.rows()));
        let out = regions.attention(all, [&k, &v], HEAD_DIM, layout).unwrap();
        near(&cpu.download(&out.row_view(0..context)).unwrap(), &expected[..context * COLS]);
        near(&image_of(&out, context), &expected[context * COLS..]);
        let out = regions.attention(images, [&k, &v], HEAD_DIM, layout.image_queries()).unwrap();
        near(&image_of(&out, 0), &expected[context * COLS..]);
    }

    #[test]
    fn groups_give_what_a_dense_mask_gives() {
        // Two overlapping boxes, with references.
        let boxes = |n: usize| u32::from(n % 6 < 4) + 2 * u32::from(n % 6 > 2 && n > 8);
        expect_dense(&[5, 3], 7, 9, (0..30).map(boxes).collect());
        // Ragged masks of many sets, in no order.
        expect_dense(&[1, 4, 2, 3], 6, 0, (0..150).map(|n| (n * 7919 % 1009) as u32 % 16).collect());
        // A region over everything, one over a single token, and no references.
        expect_dense(&[4], 3, 0, vec![1; 20]);
        expect_dense(&[4, 70], 1, 5, (0..20).map(|n| 1 + 2 * u32::from(n == 7)).collect());
    }

    #[test]
    fn regions_in_another_order_give_the_same() {
        let sets: Vec<u32> = (0..40).map(|n| (n / 7 % 4) as u32).collect();
        let swapped: Vec<u32> = sets.iter().map(|set| set >> 1 | (set & 1) << 1).collect();
        let layout = TokenLayout::new(1, 9, 40);
        let (cpu, image) = (Cpu::new(Precision::F32), values(40, 5));
        let [first, second, prompt] = [(3, 100), (3, 200), (3, 300)].map(|(rows, seed)| values(rows, seed));
        let attend = |texts: [&[f32]; 2], sets: &[u32]| {
            let regions = Regions::new(RegionMap { texts: vec![3, 3], tokens: sets.to_vec() }, layout);
            let image = regions.sort(&cpu.upload(&image, 40, COLS).unwrap()).unwrap();
            let text = cpu.upload(&[texts[0], texts[1], &prompt].concat(), 9, COLS).unwrap();
            let all = Tensor::concat_rows(&[&text, &image]).unwrap();
            let out = regions.attention(all.row_view(0..49), [&all, &all], HEAD_DIM, layout).unwrap();
            cpu.download(&regions.unsort(&out.row_view(9..49)).unwrap()).unwrap()
        };
        let (got, expected) = (attend([&second, &first], &swapped), attend([&first, &second], &sets));
        assert!(got.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5));
    }

    #[test]
    fn rows_that_see_the_same_are_one_group() {
        // Text 0..2 and 2..5, prompt 5..6, references 6..7, image 7..12.
        let map = RegionMap { texts: vec![2, 3], tokens: vec![1, 0, 3, 0, 2] };
        let regions = Regions::new(map, TokenLayout { references: 1, ..TokenLayout::new(1, 6, 5) });
        let group = |Group { queries, own, others }: &Group| format!("{queries:?} {own:?} {others:?}");
        assert_eq!(
            regions.groups.iter().map(group).collect::<Vec<_>>(),
            [
                "0..2 0..2 [9..10, 11..12]",
                "2..5 2..5 [10..12]",
                "5..9 5..12 []",
                "9..10 5..12 [0..2]",
                "10..11 5..12 [2..5]",
                "11..12 5..12 [0..5]"
            ]
        );
        assert_eq!(regions.sorted, [1..2, 3..4, 0..1, 4..5, 2..3]);
        assert_eq!(regions.unsorted, [2..3, 0..1, 4..5, 1..2, 3..4]);
    }
}

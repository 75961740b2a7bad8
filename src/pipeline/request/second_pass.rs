//! The requests and the plan of a second pass.

use std::sync::Arc;

use crate::error::{Error, Field, Result};
use crate::model::info::ModelInfo;
use crate::pipeline::request::fields::Request;
use crate::pipeline::request::images::Change;
use crate::pipeline::request::plan::{HiresPlan, Plan};
use crate::pipeline::request::tiles::SIDE;
use crate::rgb::Rgb;

/// Results with more pixels are edited in tiles.
const MANY_PIXELS: usize = 4 << 20;

impl Request {
    /// Returns the request of the first pass, which has no tiles if there is a second pass.
    pub(crate) fn first_pass(&self) -> Self {
        match self.hires {
            Some(_) => Self { hires: None, tile: None, tile_overlap: None, ..self.clone() },
            None => self.clone(),
        }
    }

    /// Returns the request of the second pass, which edits the enlarged image; `None` if the image is only enlarged,
    /// or there is no second pass. A large image is edited in tiles if the model can.
    pub(crate) fn second_pass(&self, image: Arc<Rgb>, info: &ModelInfo) -> Option<Self> {
        let hires = self.hires.as_ref().filter(|hires| hires.strength() > 0.0)?;
        let can_tile = self.regions.is_empty() && (hires.no_reference || !info.caches_references);
        let automatic = Some(SIDE).filter(|_| can_tile && image.width * image.height > MANY_PIXELS);
        let change = Change { image, cells: None, strength: hires.strength(), is_reference: !hires.no_reference };
        let own = hires.prompt.is_some();
        Some(Self {
            prompt: hires.prompt.clone().unwrap_or_else(|| self.prompt.clone()),
            has_boxes: self.has_boxes && !own,
            embeddings: self.embeddings.clone().filter(|_| !own),
            steps: hires.steps.or(self.steps),
            change: Some(change),
            width: None,
            height: None,
            noise: None,
            latents: None,
            references: Vec::new(),
            given_references: Vec::new(),
            reference_weights: Vec::new(),
            sparse: false,
            tile: self.tile.or(automatic),
            hires: None,
            ..self.clone()
        })
    }
}

impl Plan {
    /// Adds the second pass of a request to the plan of its first one.
    ///
    /// Errors if the model cannot do what is requested, or as `count`.
    pub(super) fn with_hires(
        mut self,
        request: &Request,
        info: &ModelInfo,
        count: &dyn Fn(&str) -> Result<usize>,
    ) -> Result<Self> {
        let Some(hires) = &request.hires else { return Ok(self) };
        hires.check()?;
        if request.reuse.is_some() {
            return Err(Error::usage(format!("`{:#}` cannot be used with `{:#}`", Field::Hires, Field::Reuse))
                .for_field(Field::Hires)
                .hint("leave one of them out"));
        }
        let size = [self.width, self.height];
        let [width, height] = hires.output_size(size)?;
        if !request.regions.is_empty() && hires.region(size).size() != size {
            return Err(Error::usage("regions need a second pass with the proportions of the first")
                .for_field(Field::Hires)
                .hint("use a factor instead of a size"));
        }
        // Plans depend on sizes alone.
        let blank = Arc::new(Rgb { width, height, bytes: vec![0; 3 * width * height] });
        let edit = request.second_pass(blank, info).map(|second| Self::single(&second, info, count)).transpose();
        // The first pass has no such error, so the cause is the second one's own value.
        let edit = edit.map_err(|e| match e.field() {
            Some(Field::Steps | Field::Width | Field::Height) => e.for_field_instead(Field::Hires),
            Some(Field::Prompt) if hires.prompt.is_some() => e.for_field_instead(Field::Hires),
            _ => e,
        });
        let edit = edit.map_err(|e| e.prefixed("second pass"))?;
        match &edit {
            Some(edit) => {
                // An edit keeps the composition, so larger sizes than those of the training do less harm.
                let size_note = info.size_note(width, height);
                let is_new = |note: &&String| !self.notes.contains(note) && Some(*note) != size_note.as_ref();
                let notes: Vec<_> =
                    edit.notes.iter().filter(is_new).map(|note| format!("second pass: {note}")).collect();
                self.notes.extend(notes);
                if width * height > MANY_PIXELS && edit.tiles.is_none() {
                    self.notes.push(format!("the second pass edits {width}x{height} in one piece: things may repeat"));
                }
            }
            None => self.notes.push("the second pass has strength 0: it only enlarges the image".to_string()),
        }
        self.hires = Some(HiresPlan { width, height, edit: edit.map(Box::new) });
        Ok(self)
    }

    /// Returns width and height of the result: those of the second pass, if there is one.
    pub fn output_size(&self) -> [usize; 2] {
        self.hires.as_ref().map_or([self.width, self.height], |hires| [hires.width, hires.height])
    }

    /// Returns the plan of the second pass, if it edits the image.
    pub fn second_pass(&self) -> Option<&Self> {
        self.hires.as_ref()?.edit.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::ModelFiles;
    use crate::pipeline::request::hires::Hires;

    fn by(by: f64) -> Hires {
        Hires { by: Some(by), ..Hires::default() }
    }

    #[test]
    fn a_plan_has_both_passes() {
        let info = ModelInfo::read(&ModelFiles::open("models/tiny".as_ref()).unwrap()).unwrap();
        let request =
            |hires| Request { width: Some(128), height: Some(64), hires: Some(hires), ..Request::new("x", 1) };
        let plan = Plan::new(&request(by(2.0)), &info).unwrap();
        let edit = plan.second_pass().unwrap();
        assert_eq!((plan.width, plan.output_size(), edit.width), (128, [256, 128], 256));
        assert_eq!((&edit.references, edit.strength, edit.hires.is_none()), (&vec![[128, 256]], Some(0.5), true));
        let enlarged = Plan::new(&request(Hires { strength: Some(0.0), ..by(2.0) }), &info).unwrap();
        assert!(enlarged.second_pass().is_none() && enlarged.output_size() == [256, 128]);
        assert!(enlarged.notes.iter().any(|note| note.contains("only enlarges")));
        let alone = Plan::new(&request(Hires { no_reference: true, ..by(2.0) }), &info).unwrap();
        assert!(alone.second_pass().unwrap().references.is_empty());
        let second = |tile: Option<usize>, by: f64| {
            let (width, height) = (Some(1024), Some(2048));
            let request = Request { width, height, tile, ..request(Hires { by: Some(by), ..Hires::default() }) };
            let plan = Plan::new(&request, &info).unwrap();
            assert!(plan.tiles.is_none(), "the second pass has them");
            let repeats = plan.notes.iter().any(|note| note.contains("one piece"));
            (plan.second_pass().unwrap().tiles.map(|tiles| (tiles.side, tiles.overlap)), repeats)
        };
        assert_eq!([1.25, 2.0].map(|by| second(None, by)), [(None, false), (Some((1024, 128)), false)]);
        assert_eq!(second(Some(0), 2.0), (None, true));
        assert_eq!(second(Some(512), 1.25), (Some((512, 128)), false));
        for steps in [0, 100_000] {
            let error = Plan::new(&request(Hires { steps: Some(steps), ..by(2.0) }), &info).unwrap_err();
            assert!(error.to_string().contains("second pass: steps"), "{error}");
            assert_eq!(error.field(), Some(Field::Hires));
        }
    }
}

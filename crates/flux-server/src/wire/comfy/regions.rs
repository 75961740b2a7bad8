//! Nodes that give parts of the image texts of their own.
//!
//! Source: ComfyUI's nodes.py. There, each text has a prediction of its own, and predictions are averaged by their
//! strengths. Here, all texts are read at once. Each part of the image sees the prompt and the texts of its regions.

use std::sync::Arc;

use flux::pipeline::MAX_REGIONS;

use super::classes::{CONDITIONING, Class, Input, class, hint, link, number, whole};
use super::error::Result;
use super::evaluate::Evaluator;
use super::graph::{Node, unsupported};
use super::kinds::{Conditioning, Kind, Place, Region, Worth};

/// Pixels of an area: default, min and max.
const LENGTH: [u64; 3] = [64, 1, 16384];
const PLACE: [u64; 3] = [0, 0, 16384];
const STRENGTH: Input = number("strength", [1.0, 0.0, 10.0]);
const TEXT: Input = link("conditioning", Kind::Conditioning);

pub const CLASSES: &[Class] = &[
    class(
        "ConditioningSetArea",
        "conditioning",
        &[TEXT, whole("width", LENGTH), whole("height", LENGTH), whole("x", PLACE), whole("y", PLACE), STRENGTH],
        &[CONDITIONING],
    ),
    class(
        "ConditioningSetAreaPercentage",
        "conditioning",
        &[
            TEXT,
            number("width", [1.0, 0.0, 1.0]),
            number("height", [1.0, 0.0, 1.0]),
            number("x", [0.0, 0.0, 1.0]),
            number("y", [0.0, 0.0, 1.0]),
            STRENGTH,
        ],
        &[CONDITIONING],
    ),
    class(
        "ConditioningSetMask",
        "conditioning",
        &[TEXT, link("mask", Kind::Mask), STRENGTH, hint("set_cond_area", &["default"])],
        &[CONDITIONING],
    ),
    class(
        "ConditioningCombine",
        "conditioning",
        &[link("conditioning_1", Kind::Conditioning), link("conditioning_2", Kind::Conditioning)],
        &[CONDITIONING],
    ),
];

/// Returns the outputs of a node.
///
/// Errors if it is not supported.
pub fn evaluate(on: &Evaluator<'_>, node: &Node) -> Result<Vec<Worth>> {
    let conditioning = match node.class.name {
        "ConditioningCombine" => combined(on, node)?,
        _ => placed(on, node)?,
    };
    Ok(vec![Worth::Conditioning(conditioning)])
}

/// Returns a conditioning whose texts have the place that a node sets.
fn placed(on: &Evaluator<'_>, node: &Node) -> Result<Conditioning> {
    let conditioning = on.conditioning(node, "conditioning")?;
    let wrong = |details: &str| Err(unsupported(node, &format!("conditioning: {details}")).at("conditioning"));
    if conditioning.is_written {
        return wrong("a prompt that a language model writes is for the whole image");
    }
    if on.number(node, "strength")? != 1.0 {
        on.note(node, "`strength` has no effect: all texts count equally");
    }
    let place = place(on, node)?;
    let is_mask = |place: &Place| matches!(place, Place::Mask(_));
    if conditioning.regions.iter().any(|region| is_mask(&region.place) != is_mask(&place)) {
        return wrong("a text has an area or a mask, not both");
    }
    let texts = conditioning.text.into_iter().chain(conditioning.regions.iter().map(|region| Arc::clone(&region.text)));
    let of = on.place(node);
    let regions: Arc<[Region]> = texts.map(|text| Region { node: of, text, place: place.clone() }).collect();
    if regions.is_empty() {
        return wrong("zeros have no place: expected a text");
    }
    Ok(Conditioning { text: None, regions, ..conditioning })
}

fn place(on: &Evaluator<'_>, node: &Node) -> Result<Place> {
    let sides = |[x, y, width, height]: [f64; 4]| [x, y, x + width, y + height];
    let names = ["x", "y", "width", "height"];
    match node.class.name {
        "ConditioningSetArea" => {
            let [x, y, width, height] = names.map(|name| on.whole(node, name).map(|pixels| pixels as f64));
            Ok(Place::Pixels(sides([x?, y?, width?, height?])))
        }
        "ConditioningSetAreaPercentage" => {
            let [x, y, width, height] = names.map(|name| on.number(node, name));
            Ok(Place::Shares(sides([x?, y?, width?, height?])))
        }
        // ConditioningSetMask
        _ => {
            // Reading the text adds a note for `mask bounds`.
            on.text(node, "set_cond_area")?;
            Ok(Place::Mask(on.mask(node, "mask")?))
        }
    }
}

fn combined(on: &Evaluator<'_>, node: &Node) -> Result<Conditioning> {
    let [first, second] = ["conditioning_1", "conditioning_2"].map(|name| on.conditioning(node, name));
    let (first, second) = (first?, second?);
    let wrong = |details: &str| Err(unsupported(node, details));
    if first.text.is_some() && second.text.is_some() {
        return wrong("two texts are for the whole image: set an area or a mask of one of them");
    }
    let references = match (first.references.is_empty(), second.references.is_empty()) {
        (_, true) => first.references,
        (true, false) => second.references,
        (false, false) if first.references == second.references => first.references,
        (false, false) => return wrong("the texts have different references: add the references to their combination"),
    };
    let regions: Arc<[Region]> = first.regions.iter().chain(&*second.regions).cloned().collect();
    if regions.len() > MAX_REGIONS {
        return wrong(&format!("{} texts have places, expected at most {MAX_REGIONS}", regions.len()));
    }
    let (is_written, text) = (first.is_written || second.is_written, first.text.or(second.text));
    Ok(Conditioning { text, is_written, regions, references })
}

#[cfg(test)]
mod tests {
    use flux::stage::CancelFlag;
    use serde_json::{Value, json};

    use super::super::error::GraphError;
    use super::super::fuzz::{One, draw, ksampler};
    use crate::jobs::request::Asked;

    /// Returns the request of a graph of 64 x 64 pixels whose sampler reads the node `last` of these nodes. The texts
    /// `left` and `right` are nodes, too.
    fn asked(last: &str, more: Value) -> Result<Asked, GraphError> {
        let mut graph = ksampler();
        let text = |text: &str| json!({"class_type": "CLIPTextEncode", "inputs": {"text": text, "clip": ["1", 1]}});
        graph.insert("left".to_string(), text("a fox"));
        graph.insert("right".to_string(), text("an owl"));
        graph.extend(more.as_object().unwrap().clone());
        graph["5"]["inputs"]["positive"] = json!([last, 0]);
        draw(&graph, &One::new(true)).map(|mut wanted| wanted.remove(0).asked)
    }

    fn node(class: &str, inputs: Value) -> Value {
        json!({"class_type": class, "inputs": inputs})
    }

    fn area(of: &str, x: u64, width: u64) -> Value {
        let inputs = json!({"conditioning": [of, 0], "x": x, "y": 0, "width": width, "height": 64, "strength": 1});
        node("ConditioningSetArea", inputs)
    }

    fn share(of: &str, strength: f64) -> Value {
        let inputs =
            json!({"conditioning": [of, 0], "x": 0.5, "y": 0, "width": 0.5, "height": 1, "strength": strength});
        node("ConditioningSetAreaPercentage", inputs)
    }

    fn both(first: &str, second: &str) -> Value {
        node("ConditioningCombine", json!({"conditioning_1": [first, 0], "conditioning_2": [second, 0]}))
    }

    fn mask(of: &str, bounds: &str) -> Value {
        let inputs = json!({"conditioning": [of, 0], "mask": ["image", 0], "strength": 1, "set_cond_area": bounds});
        node("ConditioningSetMask", inputs)
    }

    fn image() -> Value {
        node("LoadImageMask", json!({"image": "first.png", "channel": "alpha"}))
    }

    fn regions(asked: &Asked) -> Vec<String> {
        asked.recipe.regions.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn texts_with_areas_become_regions() {
        let graph =
            json!({"a": area("left", 0, 32), "b": share("right", 1.0), "c": both("2", "a"), "d": both("c", "b")});
        let two = asked("d", graph).unwrap();
        assert_eq!(two.recipe.prompt, "a red circle");
        assert_eq!(regions(&two), ["0,0,1000,500:a fox", "0,500,1000,1000:an owl"]);
        two.recipe.check().unwrap();
        // The place of a combination is that of all its texts, and a second place replaces the first one.
        let graph =
            json!({"a": both("2", "r"), "r": area("left", 0, 32), "b": share("a", 0.5), "c": both("right", "b")});
        let moved = asked("c", graph).unwrap();
        assert_eq!((&*moved.recipe.prompt, regions(&moved).len()), ("an owl", 2));
        assert_eq!(regions(&moved)[1], "0,500,1000,1000:a fox");
        assert!(moved.notes.iter().any(|note| note.contains("`strength`")), "{:?}", moved.notes);
        let alone = asked("a", json!({"a": area("left", 0, 32)})).unwrap();
        assert_eq!((&*alone.recipe.prompt, regions(&alone).len(), alone.notes.len()), ("", 1, 1 + two.notes.len()));
    }

    #[test]
    fn masks_of_texts_are_files() {
        let graph = |bounds: &str| json!({"image": image(), "a": mask("left", bounds), "b": both("2", "a")});
        let mut masked = asked("b", graph("default")).unwrap();
        masked.prepare(&CancelFlag::default()).unwrap();
        let name = masked.recipe.regions[0].mask.clone().unwrap();
        let file = flux::input::read_bytes(&masked.files[&name]).unwrap();
        assert_eq!((file.width, file.height, file.bytes[0], *file.bytes.last().unwrap()), (64, 64, 255, 0));
        masked.recipe.check().unwrap();
        let solid = node("SolidMask", json!({"value": 1.0, "width": 64, "height": 32}));
        let mut whole = graph("default");
        whole["image"] = solid;
        let mut whole = asked("b", whole).unwrap();
        whole.prepare(&CancelFlag::default()).unwrap();
        let file = flux::input::read_bytes(&whole.files[&name]).unwrap();
        assert!(file.bytes.len() == 3 * 64 * 64 && file.bytes.iter().all(|value| *value == 255));
        let bounds = asked("b", graph("mask bounds")).unwrap();
        assert!(bounds.notes.iter().any(|note| note.contains("mask bounds")), "{:?}", bounds.notes);
    }

    #[test]
    fn texts_that_cannot_be_placed_are_named() {
        let zeros = node("ConditioningZeroOut", json!({"conditioning": ["left", 0]}));
        let doubled = (0..6).fold(json!({"d0": area("left", 0, 32)}), |mut graph, n| {
            graph[format!("d{}", n + 1)] = both(&format!("d{n}"), &format!("d{n}"));
            graph
        });
        for (last, graph, node, input) in [
            ("a", json!({"a": both("left", "right")}), "a", None),
            ("a", json!({"a": area("left", 64, 32)}), "a", None),
            (
                "b",
                json!({"image": image(), "a": mask("left", "default"), "b": area("a", 0, 32)}),
                "b",
                Some("conditioning"),
            ),
            ("b", json!({"a": zeros, "b": area("a", 0, 32)}), "b", Some("conditioning")),
            ("d6", doubled, "d5", None),
        ] {
            let error = asked(last, graph.clone()).unwrap_err();
            let of = error.node.clone().unwrap();
            assert_eq!((error.kind, &*of.id, of.input.as_deref()), ("unsupported_graph", node, input), "{graph}");
        }
    }
}

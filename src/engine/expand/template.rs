//! The grammar of templates: from text to nodes.

use std::fmt;

use serde_json::Value;

/// Maximum depth of nested braces and wildcards.
pub(super) const MAX_DEPTH: usize = 16;
/// Maximum weight of an option.
const MAX_WEIGHT: f64 = 1e9;

/// A part of a template.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    Text(String),
    Group(Group),
    Wildcard(Wildcard),
}

/// `{a|b}`: a choice between options.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Group {
    pub place: Place,
    /// Minimum and maximum number of options to pick.
    pub picks: [usize; 2],
    pub separator: String,
    pub options: Vec<Choice>,
}

impl Group {
    /// Returns the wildcard that is the only option: its lines are the options of the group.
    pub fn wildcard(&self) -> Option<&Wildcard> {
        match &self.options[..] {
            [Choice { nodes, .. }] => match &nodes[..] {
                [Node::Wildcard(wildcard)] => Some(wildcard),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the weight of each option.
    pub fn weights(&self) -> Vec<f64> {
        self.options.iter().map(|option| option.weight).collect()
    }
}

/// An option of a [`Group`].
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Choice {
    pub weight: f64,
    pub nodes: Vec<Node>,
}

/// `__name__`: a choice between the lines of a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Wildcard {
    pub place: Place,
    pub name: String,
}

/// A position in a text. Lines and columns count from 1, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub line: usize,
    pub column: usize,
}

impl Place {
    pub const START: Self = Self { line: 1, column: 1 };

    fn after(self, text: &str) -> Self {
        match text.rsplit_once('\n') {
            Some((_, last)) => Self { line: self.line + text.matches('\n').count(), column: 1 + last.chars().count() },
            None => Self { column: self.column + text.chars().count(), ..self },
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            1 => write!(f, "column {}", self.column),
            line => write!(f, "line {line}, column {}", self.column),
        }
    }
}

/// An error in a template or a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub place: Place,
    pub what: String,
    pub hint: Option<String>,
}

/// Parses a template that starts at `place`.
///
/// Errors if a group is not closed or not well formed.
pub(super) fn parse(text: &str, place: Place) -> Result<Vec<Node>, Fault> {
    Parser { rest: text, place, depth: 0 }.nodes()
}

/// Splits `0.5::text` into the weight and the text; the default weight is 1.
///
/// Errors if the weight is out of range.
pub(super) fn split_weight(text: &str) -> Result<(f64, &str), String> {
    let text = text.trim_start();
    let is_number = |text: &&str| text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | '+'));
    let split = text.split_once("::").map(|(weight, rest)| (weight.trim(), rest.trim_start()));
    let Some((weight, rest)) = split.filter(|(weight, _)| is_number(weight)) else { return Ok((1.0, text)) };
    match weight.parse() {
        Ok(number) if (0.0..=MAX_WEIGHT).contains(&number) => Ok((number, rest)),
        Ok(_) => Err(format!("the weight is {weight}, expected 0 to {MAX_WEIGHT}")),
        Err(_) => Ok((1.0, text)),
    }
}

struct Parser<'a> {
    rest: &'a str,
    place: Place,
    /// Number of open braces.
    depth: usize,
}

impl<'a> Parser<'a> {
    /// Consumes the next bytes, and returns them.
    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        (self.rest, self.place) = (rest, self.place.after(taken));
        taken
    }

    /// Parses up to the end, or in a group up to the end of an option.
    fn nodes(&mut self) -> Result<Vec<Node>, Fault> {
        let mut nodes = Vec::new();
        while let Some(c) = self.rest.chars().next() {
            match c {
                '|' | '}' if self.depth > 0 => break,
                '\\' if self.rest[1..].starts_with(['{', '}', '|', '_']) => {
                    self.take(1);
                    push(&mut nodes, self.take(1));
                }
                '{' => self.brace(&mut nodes)?,
                '$' if self.rest.starts_with("${") => {
                    return Err(fault(self.place, "variables are not supported"));
                }
                '_' if self.rest.starts_with("__") => self.wildcard(&mut nodes)?,
                c => push(&mut nodes, self.take(c.len_utf8())),
            }
        }
        Ok(nodes)
    }

    fn wildcard(&mut self, nodes: &mut Vec<Node>) -> Result<(), Fault> {
        let place = self.place;
        let name = self.rest[2..].split_once("__").map_or("", |(name, _)| name);
        let is_name = name.starts_with(|c: char| c.is_alphanumeric() || c == '*')
            && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | '*'));
        if !is_name {
            push(nodes, self.take(1));
            return Ok(());
        }
        if name.contains('*') {
            return Err(fault(place, "wildcards with `*` are not supported"));
        }
        self.take(name.len() + 4);
        nodes.push(Node::Wildcard(Wildcard { place, name: name.to_string() }));
        Ok(())
    }

    /// Parses a brace: JSON and braces without a choice stay as they are.
    fn brace(&mut self, nodes: &mut Vec<Node>) -> Result<(), Fault> {
        let place = self.place;
        if self.rest[1..].trim_start().starts_with(['"', '}']) {
            let length = json_length(self.rest).unwrap_or(1);
            push(nodes, self.take(length));
            return Ok(());
        }
        if self.depth == MAX_DEPTH {
            return Err(fault(place, format!("braces are nested more than {MAX_DEPTH} deep")));
        }
        self.take(1);
        self.depth += 1;
        let picks = self.picks()?;
        let separator = picks.and_then(|_| self.separator());
        let mut options = vec![self.nodes()?];
        while self.rest.starts_with('|') {
            self.take(1);
            options.push(self.nodes()?);
        }
        self.depth -= 1;
        let is_closed = !self.rest.is_empty();
        let end = self.take(usize::from(is_closed));
        if picks.is_none() && options.len() == 1 {
            push(nodes, "{");
            for node in options.remove(0) {
                match node {
                    Node::Text(text) => push(nodes, &text),
                    node => nodes.push(node),
                }
            }
            push(nodes, end);
            return Ok(());
        }
        if !is_closed {
            return Err(Fault {
                hint: Some("close it with `}`, or write `\\{` for a brace".to_string()),
                ..fault(place, "the brace is not closed")
            });
        }
        let options = options.into_iter().map(choice).collect::<Result<_, _>>();
        nodes.push(Node::Group(Group {
            place,
            picks: picks.unwrap_or([1, 1]),
            separator: separator.unwrap_or(", ").to_string(),
            options: options.map_err(|what| fault(place, what))?,
        }));
        Ok(())
    }

    /// Parses `2$$` or `1-2$$` behind a brace.
    fn picks(&mut self) -> Result<Option<[usize; 2]>, Fault> {
        let (place, counts) = (self.place, |c: char| c.is_ascii_digit() || matches!(c, '-' | ' '));
        let length = self.rest.find(|c| !counts(c)).unwrap_or(self.rest.len());
        let text = self.rest[..length].trim();
        if text.is_empty() || !self.rest[length..].starts_with("$$") {
            return Ok(None);
        }
        self.take(length + 2);
        let (least, most) = text.split_once('-').unwrap_or((text, text));
        match (least.trim().parse(), most.trim().parse()) {
            (Ok(least), Ok(most)) if least <= most => Ok(Some([least, most])),
            _ => Err(fault(place, format!("`{text}$$` is not a number of options, expected N$$ or N-M$$"))),
        }
    }

    /// Parses the separator and `$$` behind the number of options. Of separators with `|`, only `|` itself is one.
    fn separator(&mut self) -> Option<&'a str> {
        let length = self.rest.find(['{', '}', '$']).filter(|at| self.rest[*at..].starts_with("$$"))?;
        let text = &self.rest[..length];
        let is_separator = !text.contains('|') || text.trim() == "|";
        is_separator.then(|| &self.take(length + 2)[..length])
    }
}

fn fault(place: Place, what: impl Into<String>) -> Fault {
    Fault { place, what: what.into(), hint: None }
}

/// Adds text to the last text.
fn push(nodes: &mut Vec<Node>, text: &str) {
    match nodes.last_mut() {
        Some(Node::Text(last)) => last.push_str(text),
        _ if text.is_empty() => {}
        _ => nodes.push(Node::Text(text.to_string())),
    }
}

/// Returns an option without the blanks around it.
fn choice(mut nodes: Vec<Node>) -> Result<Choice, String> {
    let mut weight = 1.0;
    if let Some(Node::Text(first)) = nodes.first_mut() {
        let (own, rest) = split_weight(first)?;
        (weight, *first) = (own, rest.to_string());
    }
    if let Some(Node::Text(last)) = nodes.last_mut() {
        last.truncate(last.trim_end().len());
    }
    nodes.retain(|node| !matches!(node, Node::Text(text) if text.is_empty()));
    Ok(Choice { weight, nodes })
}

/// Returns the length of the JSON object at the start of a text.
fn json_length(text: &str) -> Option<usize> {
    // Values have a limit on their depth, so that many unclosed objects take linear time.
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    values.next()?.ok()?;
    Some(values.byte_offset())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(text: &str) -> Vec<Node> {
        parse(text, Place::START).unwrap_or_else(|fault| panic!("{text}: {fault:?}"))
    }

    fn group(text: &str) -> Group {
        match nodes(text).remove(0) {
            Node::Group(group) => group,
            node => panic!("{text}: {node:?}"),
        }
    }

    #[test]
    fn text_without_choices_stays_as_it_is() {
        for text in [
            r#"[{"id": "cat_1", "bbox": [1,2,3,4]}]"#,
            r#"{"subject": "a {red|blue} __color__ cat", "colors": ["a|b", "\"}"]}"#,
            r#"A cat <cat_1> [{ "id": "cat_1", "desc": "a|b ${x}" }]"#,
            "{}, { }, {a}, {a b, {c}}, {a",
            "a | b } c",
            "snake_case, __, ____, __ a __, _a_, __-a__",
            r"back\slash \( \a",
            "$5 and $$ and $$x",
            "{$$$}",
            "{\"a\": not JSON}",
        ] {
            assert_eq!(nodes(text), [Node::Text(text.to_string())]);
        }
        assert_eq!(nodes(r"\{a\|b\} \_\_c__"), [Node::Text("{a|b} __c__".to_string())]);
        let deep = format!("{}1{}", r#"{"a":"#.repeat(50), "}".repeat(50));
        assert_eq!(nodes(&deep), [Node::Text(deep)]);
    }

    #[test]
    fn a_group_has_counts_separators_and_weights() {
        let plain = group("{a|b}");
        assert_eq!((plain.picks, plain.separator.as_str(), plain.options.len()), ([1, 1], ", ", 2));
        for (text, picks, separator, options) in [
            ("{2$$a|b|c}", [2, 2], ", ", 3),
            ("{ 1 - 2 $$a|b}", [1, 2], ", ", 2),
            ("{0-1$$a}", [0, 1], ", ", 1),
            ("{2$$ and $$a|b|c}", [2, 2], " and ", 3),
            ("{2$$|$$a|b}", [2, 2], "|", 2),
            ("{2$$ | $$a|b}", [2, 2], " | ", 2),
            ("{2$$$$a|b}", [2, 2], "", 2),
            ("{2$$a|b for 5$$}", [2, 2], ", ", 2),
            ("{2$$$5|b}", [2, 2], ", ", 2),
        ] {
            let group = group(text);
            let expected = (picks, separator, options);
            assert_eq!((group.picks, group.separator.as_str(), group.options.len()), expected, "{text}");
        }
        let weights = group("{0.5::a| 2 ::b|c|std::d|3rd::e|.5::|0::f}");
        let weights: Vec<_> = weights.options.into_iter().map(|option| (option.weight, option.nodes)).collect();
        let text = |text: &str| (!text.is_empty()).then(|| Node::Text(text.to_string())).into_iter().collect();
        let expected =
            [0.5, 2.0, 1.0, 1.0, 1.0, 0.5, 0.0].into_iter().zip(["a", "b", "c", "std::d", "3rd::e", "", "f"]);
        assert_eq!(weights, expected.map(|(weight, words)| (weight, text(words))).collect::<Vec<_>>());
    }

    #[test]
    fn groups_and_wildcards_are_nested() {
        let outer = group("{a {b|c} d|__e/f-1__|{ x {y} }}");
        assert_eq!(outer.options[0].nodes.len(), 3);
        let place = Place { line: 1, column: 12 };
        assert_eq!(outer.options[1].nodes, [Node::Wildcard(Wildcard { place, name: "e/f-1".to_string() })]);
        assert_eq!(outer.options[2].nodes, [Node::Text("{ x {y} }".to_string())]);
        assert!(matches!(&nodes("{ {a|b} }")[..], [Node::Text(_), Node::Group(_), Node::Text(_)]));
        assert!(matches!(&nodes("___a__")[..], [Node::Text(_), Node::Wildcard(_)]));
    }

    #[test]
    fn an_error_names_the_column() {
        for (text, place, words) in [
            ("a {b|c", "column 3", "not closed"),
            ("ä\n\u{1f9c0} {2$$a", "line 2, column 3", "not closed"),
            ("{a|b} ${x=1}", "column 7", "variables"),
            ("__a/*__", "column 1", "`*`"),
            ("{3-1$$a|b}", "column 2", "`3-1$$`"),
            ("{1-2-3$$a|b}", "column 2", "N-M$$"),
            ("x {99999999999999999999$$a|b}", "column 4", "N$$"),
            ("{-1::a|b}", "column 1", "the weight is -1"),
            ("{1e10::a|b}", "column 1", "1000000000"),
            (&"{a|".repeat(17), "column 49", "16"),
            (&"{".repeat(17), "column 17", "16"),
        ] {
            let fault = parse(text, Place::START).unwrap_err();
            assert_eq!(fault.place.to_string(), place, "{text}");
            assert!(fault.what.contains(words), "{text}: {}", fault.what);
        }
    }
}

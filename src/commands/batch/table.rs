//! A table of recipes: CSV with the names of fields on top.

use flux::{Error, Result};
use serde_json::{Map, Number, Value};

/// Fields that are numbers, and those that are yes or no. All others are texts.
const NUMBERS: [&str; 12] = [
    "width",
    "height",
    "steps",
    "num_inference_steps",
    "seed",
    "guidance",
    "guidance_scale",
    "max_sequence_length",
    "strength",
    "mask_padding",
    "feather",
    "n",
];
const SWITCHES: [&str; 3] = ["no_composite", "no_self_reference", "sparse"];

/// A row, and the number of the line on which it begins.
pub type Row = (usize, Result<Map<String, Value>>);

/// The rows.
///
/// Errors when there is no line of names, or two columns have one name.
pub fn rows(text: &str) -> Result<Vec<Row>> {
    // By CR LF the reader counts lines otherwise.
    let text = text.replace("\r\n", "\n");
    if let Some(line) = open_quote(&text) {
        return Err(Error::usage(format!("line {line} begins a cell in double quotes that never ends"))
            .hint("end it with a double quote; one within it is written twice"));
    }
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(text.as_bytes());
    let names = reader.headers().map_err(|e| Error::usage(format!("the table cannot be read: {e}")))?.clone();
    let names: Vec<String> = names.iter().map(|name| name.trim().to_string()).collect();
    if names.iter().all(String::is_empty) {
        return Err(
            Error::usage("the table has no line of names").hint("begin it with a line such as prompt,seed,size")
        );
    }
    if let Some(name) = names.iter().enumerate().find_map(|(at, name)| names[..at].contains(name).then_some(name)) {
        return Err(Error::usage(format!("two columns are called `{name}`")).hint("give each its own name"));
    }
    let row = |record: csv::Result<csv::StringRecord>| match record {
        Ok(record) => {
            let line = record.position().map_or(0, |position| position.line() as usize);
            (line, object(&names, &record))
        }
        Err(e) => {
            let line = e.position().map_or(0, |position| position.line() as usize);
            (line, Err(Error::usage(format!("the row cannot be read: {e}"))))
        }
    };
    // A row of nothing but commas asks for nothing.
    let rows = reader.records().map(row);
    Ok(rows.filter(|(_, row)| row.as_ref().map_or(true, |row| !row.is_empty())).collect())
}

/// The line on which a cell begins whose quotes the end of the file cuts off: the reader would take the rest for it.
fn open_quote(text: &str) -> Option<usize> {
    let (mut line, mut begins_cell) = (1, true);
    let mut quoted = None;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        line += usize::from(c == '\n');
        if quoted.is_some() {
            // Two of them are one in the cell.
            if c == '"' && chars.next_if_eq(&'"').is_none() {
                quoted = None;
            }
        } else if c == '"' && begins_cell {
            quoted = Some(line);
        }
        begins_cell = quoted.is_none() && matches!(c, ',' | '\n' | '\r');
    }
    quoted
}

fn object(names: &[String], record: &csv::StringRecord) -> Result<Map<String, Value>> {
    if record.len() > names.len() {
        return Err(Error::usage(format!("the row has {} cells, and there are {} names", record.len(), names.len()))
            .hint("a cell with a comma stands in double quotes"));
    }
    let cells = names.iter().zip(record).filter(|(_, cell)| !cell.trim().is_empty());
    cells.map(|(name, cell)| Ok((name.clone(), value(name, cell)?))).collect()
}

/// What a cell says.
pub fn value(name: &str, cell: &str) -> Result<Value> {
    let wrong = |expected: &str| Error::usage(format!("`{name}` is `{cell}`, expected {expected}"));
    let trimmed = cell.trim();
    match name {
        "seed" if trimmed == "random" => Ok("random".into()),
        _ if NUMBERS.contains(&name) => {
            let number: std::result::Result<Number, _> = serde_json::from_str(trimmed);
            number.map(Value::Number).map_err(|_| wrong("a number"))
        }
        _ if SWITCHES.contains(&name) => match trimmed.to_ascii_lowercase().as_str() {
            "true" | "yes" | "1" => Ok(true.into()),
            "false" | "no" | "0" => Ok(false.into()),
            _ => Err(wrong("true or false")),
        },
        "inputs" | "adapters" | "extend" if trimmed.starts_with(['[', '{']) => {
            serde_json::from_str(trimmed).map_err(|e| wrong(&format!("JSON: {e}")))
        }
        "inputs" => Ok(trimmed.split(';').map(|file| file.trim().into()).collect::<Vec<Value>>().into()),
        "adapters" => trimmed.split(';').map(|used| adapter(used.trim())).collect::<Result<Vec<_>>>().map(Value::Array),
        "extend" => {
            let sides: Option<Vec<u64>> = trimmed.split(',').map(|side| side.trim().parse().ok()).collect();
            match sides.as_deref() {
                Some([left, top, right, bottom]) => {
                    Ok(serde_json::json!({ "left": left, "top": top, "right": right, "bottom": bottom }))
                }
                _ => Err(wrong("LEFT,TOP,RIGHT,BOTTOM")),
            }
        }
        "prompt" | "negative" | "negative_prompt" => Ok(cell.into()),
        _ => Ok(trimmed.into()),
    }
}

/// `FILE` or `FILE:STRENGTH`
fn adapter(text: &str) -> Result<Value> {
    let split = text.rsplit_once(':').and_then(|(file, strength)| Some((file, strength.parse::<f64>().ok()?)));
    let (file, strength) = split.unwrap_or((text, 1.0));
    if file.is_empty() {
        return Err(Error::usage(format!("`adapters` has `{text}`, expected FILE or FILE:STRENGTH")));
    }
    Ok(serde_json::json!({ "file": file, "strength": strength }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(usize, std::result::Result<Value, String>)> {
        let row = |(line, row): Row| (line, row.map(Value::Object).map_err(|e| e.to_string()));
        rows(text).unwrap().into_iter().map(row).collect()
    }

    #[test]
    fn cells_have_the_types_of_their_fields() {
        let text = "prompt,seed,inputs,adapters,extend,no_composite,strength\r\n\
                    \"a cat, with\r\na hat\",7,a.png; b.png,style:0.5;other,,yes,0.25\r\n\
                    007,random,,,\"1,2,3,4\",,\n\n,,,,,,\n";
        let rows = read(text);
        assert_eq!(
            rows[0],
            (
                2,
                Ok(serde_json::json!({
                    "prompt": "a cat, with\na hat", "seed": 7, "inputs": ["a.png", "b.png"], "strength": 0.25,
                    "adapters": [{"file": "style", "strength": 0.5}, {"file": "other", "strength": 1.0}], "no_composite": true
                }))
            )
        );
        let extend = serde_json::json!({"left": 1, "top": 2, "right": 3, "bottom": 4});
        assert_eq!(rows[1], (4, Ok(serde_json::json!({"prompt": "007", "seed": "random", "extend": extend}))));
        assert_eq!(rows.len(), 2);
    }

    #[test]
    fn what_is_wrong_with_a_row_is_told_and_the_others_stay() {
        let rows = read("prompt,steps,no_composite,extend\na,four,,\nb,4,maybe,\nc,4,,1,2\nd,4,,\ne,4,,x\n");
        for (row, words) in [(0, "`steps` is `four`"), (1, "true or false"), (2, "5 cells"), (4, "LEFT,TOP")] {
            assert!(rows[row].1.as_ref().is_err_and(|e| e.contains(words)), "{:?}", rows[row]);
        }
        assert!(rows[3].1.is_ok() && rows[3].0 == 5);
    }

    #[test]
    fn names_are_there_and_each_once() {
        assert!(rows("").is_err() && rows(",,\n1,2,3\n").is_err());
        assert!(rows("prompt,seed,prompt\na,1,b\n").is_err_and(|e| e.to_string().contains("two columns")));
    }

    #[test]
    fn quotes_end() {
        for (text, line) in [("prompt\n\"a\nb\n", 2), ("prompt\na\n\"b\"\",c\nd", 3), ("\"prompt", 1)] {
            let error = rows(text).unwrap_err().to_string();
            assert!(error.contains(&format!("line {line} begins a cell in double quotes")), "{error}");
        }
        assert_eq!(read("prompt\n\"a \"\"cat\"\"\"\n5\" tall\n").len(), 2);
    }
}

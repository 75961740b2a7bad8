//! Tables of recipes: CSV with field names in the first row.

use flux::engine::AdapterFile;
use flux::output::plain_name;
use flux::{Error, Result};
use serde_json::{Map, Number, Value};

use super::fields::{self, ALIASES, FIELDS, META};

/// Fields with numbers, and fields with booleans. All other fields are text.
const NUMBERS: [&str; 14] = [
    "width", "height", "steps", "num_inference_steps", "seed", "guidance", "guidance_scale", "max_sequence_length",
    "strength", "mask_padding", "feather", "tile", "tile_overlap", "n",
];
const SWITCHES: [&str; 6] =
    ["no_composite", "full_size", "no_self_reference", "sparse", fields::RECIPE, fields::UPSAMPLE];

/// Alternative names of columns.
const OTHER_NAMES: [(&str, &str); 4] =
    [("input", "inputs"), ("lora", "adapters"), ("loras", "adapters"), ("count", "n")];
/// Possible cell separators.
const SEPARATORS: [char; 3] = [',', ';', '\t'];

/// A row, with the number of its first line.
pub type Row = (usize, Result<Map<String, Value>>);

/// A parsed table.
#[derive(Debug)]
pub struct Table {
    pub rows: Vec<Row>,
    /// The names of its columns.
    pub columns: Vec<String>,
    /// Columns that are not fields of a recipe.
    pub meta: Vec<String>,
}

impl Table {
    /// Wraps rows without known columns.
    pub fn from_rows(rows: Vec<Row>) -> Self {
        Self { rows, columns: Vec::new(), meta: Vec::new() }
    }
}

/// A column.
struct Column {
    /// The column's name in the table; `field` is the recipe field.
    name: String,
    field: String,
    is_field: bool,
}

/// Parses a table. Its separator comes from the header line, or from a line like `sep=;` before it.
///
/// Errors if the header line is invalid, with the column and the line, or if a quote is not closed.
pub fn read(text: &str) -> Result<Table> {
    // The CSV reader counts CR LF as two lines.
    let text = text.replace("\r\n", "\n");
    let (own, before) = own_separator(&text)?;
    let text = &text[before..];
    let skipped = usize::from(before > 0);
    let first = 1 + skipped + text.lines().take_while(|line| line.trim().is_empty()).count();
    let separator = own.unwrap_or_else(|| separator_of(text));
    if let Some(line) = open_quote(text, separator) {
        let line = line + skipped;
        return Err(Error::usage(format!("line {line} opens a double quote that is never closed"))
            .hint("close it with a double quote; write a double quote inside a cell twice"));
    }
    let mut reader = reader(text, separator);
    let names = reader.headers().map_err(|e| Error::usage(format!("cannot read the table: {e}")))?.clone();
    let columns = columns(&names, first)?;
    let mut rows = Vec::new();
    for record in reader.records() {
        let (line, row) = match record {
            Ok(record) => {
                let line = record.position().map_or(0, |position| position.line() as usize) + skipped;
                check_unnamed(&columns, &record, first, line)?;
                (line, object(&columns, &record, separator))
            }
            Err(e) => {
                let line = e.position().map_or(0, |position| position.line() as usize) + skipped;
                (line, Err(Error::usage(format!("cannot read the row: {e}"))))
            }
        };
        // A row of only separators is skipped.
        if row.as_ref().map_or(true, |row| !row.is_empty()) {
            rows.push((line, row));
        }
    }
    let named = columns.iter().filter(|column| !column.name.is_empty());
    let meta = named.clone().filter(|column| !column.is_field).map(|column| column.name.clone()).collect();
    Ok(Table { rows, columns: named.map(|column| column.name.clone()).collect(), meta })
}

fn reader(text: &str, separator: char) -> csv::Reader<&[u8]> {
    csv::ReaderBuilder::new().flexible(true).delimiter(separator as u8).from_reader(text.as_bytes())
}

/// Returns the separator in a first line such as `sep=;`, as spreadsheets write it, and the length of that line.
fn own_separator(text: &str) -> Result<(Option<char>, usize)> {
    let line = text.split('\n').next().unwrap_or_default();
    let said = line.trim_end_matches('\r').trim_matches('"');
    if said.get(..4).is_none_or(|begin| !begin.eq_ignore_ascii_case("sep=")) {
        return Ok((None, 0));
    }
    // Saving the file again may have appended separators to this line.
    let separator = said[4..].chars().next().filter(|c| SEPARATORS.contains(c) || *c == '|');
    match separator {
        Some(separator) => Ok((Some(separator), (line.len() + 1).min(text.len()))),
        None => Err(Error::usage(format!("line 1 is `{said}`, expected `sep=,`, `sep=;`, `sep=|` or a tab after `=`"))
            .hint("leave the line out: the separator is detected from the header")),
    }
}

/// Returns the separator that yields the most known fields in the header line, then the most columns.
fn separator_of(text: &str) -> char {
    let count = |separator: &char| {
        let names = reader(text, *separator).headers().cloned().unwrap_or_default();
        (names.iter().filter(|name| field_of(name).1).count(), names.len())
    };
    // `max_by_key` returns the last maximum; in reverse order the first separator wins ties.
    SEPARATORS.into_iter().rev().max_by_key(count).unwrap_or(',')
}

/// Returns the field that a column name stands for, and whether it is a recipe field. Case, spaces and hyphens are
/// ignored.
fn field_of(name: &str) -> (String, bool) {
    let plain = plain_name(name);
    let plain = OTHER_NAMES.iter().find(|(other, _)| *other == plain).map_or(plain, |(_, field)| field.to_string());
    let is_field = FIELDS.contains(&plain.as_str());
    (plain, is_field)
}

/// Parses the columns of a header line.
fn columns(names: &csv::StringRecord, line: usize) -> Result<Vec<Column>> {
    let column = |name: &str| {
        let name = name.trim().to_string();
        let (field, is_field) = field_of(&name);
        Column { name, field, is_field }
    };
    let columns: Vec<_> = names.iter().map(column).collect();
    let wrong =
        |what: String| Error::usage(format!("line {line}: {what}")).hint(format!("the fields are {}", fields::names()));
    if columns.iter().all(|column| column.name.is_empty()) {
        return Err(
            wrong("the table has no header".to_string()).hint_instead("start it with a line such as prompt,seed,size")
        );
    }
    let of_field = |field: &str| columns.iter().find(|column| column.field == field);
    for (at, column) in columns.iter().enumerate().filter(|(_, column)| !column.name.is_empty()) {
        if let Some(other) = columns[..at].iter().find(|other| other.field == column.field) {
            let what = format!("the columns `{}` and `{}` have the same name", other.name, column.name);
            return Err(wrong(what).hint_instead("give each column its own name"));
        }
        let aliased = ALIASES.iter().find(|(alias, _)| *alias == column.field).and_then(|(_, own)| of_field(own));
        if let Some(own) = aliased {
            let what = format!("the columns `{}` and `{}` set the same field", own.name, column.name);
            return Err(wrong(what).hint_instead("leave one of them out"));
        }
        if let Some(near) = near(&column.field).filter(|_| !column.is_field) {
            let what = format!("unknown column `{}`; did you mean `{near}`?", column.name);
            return Err(wrong(what).hint_instead(format!(
                "the fields are {}; columns with other names are kept as `meta` in the manifest",
                fields::names()
            )));
        }
    }
    if !columns.iter().any(|column| column.is_field) {
        let names = columns.iter().map(|column| format!("`{}`", column.name)).collect::<Vec<_>>().join(", ");
        return Err(wrong(format!("none of the columns {names} is a recipe field")));
    }
    Ok(columns)
}

/// Returns a field with a similar name, for typos.
fn near(name: &str) -> Option<&'static str> {
    let distance = |field: &&str| strsim::damerau_levenshtein(name, field);
    let most = |field: &str| match field.len() {
        ..4 => 0,
        4..8 => 1,
        _ => 2,
    };
    FIELDS.iter().copied().min_by_key(distance).filter(|field| distance(field) <= most(field))
}

/// Errors if a column without a name has a non-empty cell.
fn check_unnamed(columns: &[Column], record: &csv::StringRecord, first: usize, line: usize) -> Result<()> {
    let unnamed =
        columns.iter().zip(record).position(|(column, cell)| column.name.is_empty() && !cell.trim().is_empty());
    match unnamed {
        None => Ok(()),
        Some(at) => {
            Err(Error::usage(format!("line {first}: column {} has no name, but line {line} has a value in it", at + 1))
                .hint("give the column a name"))
        }
    }
}

/// Returns the line of a cell whose quotes are never closed. The CSV reader would take the rest of the file as this
/// cell.
fn open_quote(text: &str, separator: char) -> Option<usize> {
    let (mut line, mut begins_cell) = (1, true);
    let mut quoted = None;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        line += usize::from(c == '\n');
        if quoted.is_some() {
            // A doubled quote is a literal quote.
            if c == '"' && chars.next_if_eq(&'"').is_none() {
                quoted = None;
            }
        } else if c == '"' && begins_cell {
            quoted = Some(line);
        }
        begins_cell = quoted.is_none() && (c == separator || matches!(c, '\n' | '\r'));
    }
    quoted
}

/// Returns the fields of a row, and its other cells under [`META`].
fn object(columns: &[Column], record: &csv::StringRecord, separator: char) -> Result<Map<String, Value>> {
    if record.iter().skip(columns.len()).any(|cell| !cell.trim().is_empty()) {
        let what = format!("the row has {} cells, but the header has {} names", record.len(), columns.len());
        return Err(
            Error::usage(what).hint(format!("put a cell with `{}` in double quotes", separator.escape_default()))
        );
    }
    let (mut row, mut meta) = (Map::new(), Map::new());
    for (column, cell) in columns.iter().zip(record).filter(|(_, cell)| !cell.trim().is_empty()) {
        if column.is_field {
            row.insert(column.field.clone(), value(&column.field, cell, separator)?);
        } else {
            meta.insert(column.name.clone(), cell.into());
        }
    }
    if !meta.is_empty() {
        row.insert(META.to_string(), meta.into());
    }
    Ok(row)
}

/// Parses the value of a cell.
pub fn value(name: &str, cell: &str, separator: char) -> Result<Value> {
    let wrong = |expected: &str| Error::usage(format!("`{name}` is `{cell}`, expected {expected}"));
    let trimmed = cell.trim();
    match name {
        "seed" if trimmed.eq_ignore_ascii_case("random") => Ok("random".into()),
        _ if NUMBERS.contains(&name) => {
            // With another separator, decimal commas are possible.
            let decimal = if separator == ',' { trimmed.to_string() } else { trimmed.replace(',', ".") };
            let number: std::result::Result<Number, _> = serde_json::from_str(&decimal);
            number.map(Value::Number).map_err(|_| wrong("a number"))
        }
        _ if SWITCHES.contains(&name) => match trimmed.to_ascii_lowercase().as_str() {
            "true" | "yes" | "1" => Ok(true.into()),
            "false" | "no" | "0" => Ok(false.into()),
            _ => Err(wrong("true or false")),
        },
        "inputs" | "adapters" | "extend" | "boxes" | "regions" | "controls" | "input_weights" | "hires"
            if trimmed.starts_with(['[', '{']) =>
        {
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
        "prompt" | "template" | "negative" | "negative_prompt" => Ok(cell.into()),
        _ => Ok(trimmed.into()),
    }
}

/// Parses `FILE`, `FILE:STRENGTH` or `FILE:STRENGTH:BLOCKS`.
fn adapter(text: &str) -> Result<Value> {
    let used = AdapterFile::parse(text).map_err(|why| Error::usage(format!("`adapters` has `{text}`: {why}")))?;
    if used.file.as_os_str().is_empty() {
        return Err(Error::usage(format!("`adapters` has `{text}`, expected FILE or FILE:STRENGTH")));
    }
    Ok(serde_json::json!(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(usize, std::result::Result<Value, String>)> {
        let row = |(line, row): Row| (line, row.map(Value::Object).map_err(|e| e.to_string()));
        super::read(text).unwrap().rows.into_iter().map(row).collect()
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
    fn a_wrong_line_of_names_is_one_error_with_the_column_and_the_line() {
        for (text, words) in [
            ("", &["no header"][..]),
            (",,\n1,2,3\n", &["line 1", "no header"]),
            ("prompt,seed,Prompt\na,1,b\n", &["line 1", "`prompt` and `Prompt`"]),
            ("prompt,steps,num_inference_steps\na,1,1\n", &["line 1", "`steps` and `num_inference_steps`"]),
            ("promt,seed\na,1\nb,2\n", &["line 1", "`promt`", "`prompt`", "no_self_reference", "output"]),
            ("sep=;\nprompt;sede\na;1\n", &["line 2", "`sede`"]),
            ("a red circle,5\na star,6\n", &["line 1", "`a red circle`", "output"]),
            ("prompt,\na,\nb,x\n", &["line 1", "column 2"]),
            ("sep=\nprompt\na\n", &["line 1", "sep="]),
        ] {
            let error = super::read(text).unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{text:?}: {error}");
        }
    }

    #[test]
    fn separators_are_found_and_cells_keep_their_quotes() {
        let expected = [(2, 5), (3, 6)];
        for (text, shift) in [
            ("prompt,seed\n\"a; b, c\",5\nx,6\n", 0),
            ("prompt;seed\r\n\"a; b, c\";5\r\nx;6\r\n", 0),
            ("prompt\tseed\n\"a; b, c\"\t5\nx\t6\n", 0),
            ("Prompt ; Seed\n\"a; b, c\";5;;\nx;6;;\n", 0),
            ("sep=;\r\nprompt;seed\r\n\"a; b, c\";5\r\nx;6\r\n", 1),
            ("\"sep=\t\"\nPROMPT\tSEED\n\"a; b, c\"\t5\nx\t6\n", 1),
            ("sep=|\nprompt|seed\n\"a; b, c\"|5\nx|6\n", 1),
        ] {
            let rows = read(text);
            let seeds: Vec<_> = rows
                .iter()
                .map(|(line, row)| (line - shift, row.as_ref().unwrap()["seed"].as_u64().unwrap()))
                .collect();
            assert_eq!((seeds.as_slice(), &rows[0].1.as_ref().unwrap()["prompt"]), (&expected[..], &"a; b, c".into()));
        }
        let rows = read("prompt;guidance;Num Inference Steps\na;2,5;4\n");
        let row = serde_json::json!({"prompt": "a", "guidance": 2.5, "num_inference_steps": 4});
        assert_eq!(rows, [(2, Ok(row))]);
    }

    #[test]
    fn other_columns_are_meta() {
        let table = super::read("Scene Nr,prompt,Note\n7,a,\n,b,dark\n").unwrap();
        assert_eq!((table.meta, table.columns.len()), (vec!["Scene Nr".to_string(), "Note".to_string()], 3));
        let rows: Vec<_> = table.rows.into_iter().map(|(_, row)| Value::Object(row.unwrap())).collect();
        assert_eq!(rows[0], serde_json::json!({"prompt": "a", "meta": {"Scene Nr": "7"}}));
        assert_eq!(rows[1], serde_json::json!({"prompt": "b", "meta": {"Note": "dark"}}));
    }

    #[test]
    fn quotes_end() {
        for (text, line) in [("prompt\n\"a\nb\n", 2), ("prompt\na\n\"b\"\",c\nd", 3), ("\"prompt", 1)] {
            let error = super::read(text).unwrap_err().to_string();
            assert!(error.contains(&format!("line {line} opens")), "{error}");
        }
        assert_eq!(read("prompt\n\"a \"\"cat\"\"\"\n5\" tall\n").len(), 2);
    }
}

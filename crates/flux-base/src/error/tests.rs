//! Tests of errors.

use super::*;

#[test]
fn errors_of_the_system_have_words_and_no_numbers() {
    let missing = std::io::Error::from_raw_os_error(2);
    let error = Error::new(format!("cannot read: {missing}, cannot write: {missing}, (os error x)"));
    assert!(error.what().starts_with("cannot read: No such file or directory,"), "{error}");
    assert!(error.what().ends_with("cannot write: No such file or directory, (os error x)"), "{error}");
}

#[test]
fn what_a_terminal_obeys_is_spelled_out_and_all_else_stays() {
    for text in ["", "a `b` c", "käse 🧀 \u{200d}", "C:\\folder", "עברית"] {
        assert!(matches!(escaped(text), Cow::Borrowed(same) if same == text), "{text}");
    }
    assert_eq!(escaped("\x1b[2J\r\n\t\0\x7f"), r"\u{1b}[2J\r\n\t\u{0}\u{7f}");
    assert_eq!(escaped("é\u{9b}31m\u{85}"), r"é\u{9b}31m\u{85}");
    for c in "\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202e}\u{2066}\u{2069}".chars() {
        assert_eq!(escaped(&c.to_string()), format!("\\u{{{:x}}}", c as u32));
    }
    let spelled = escaped("\x1b").into_owned();
    assert_eq!(escaped(&spelled), spelled, "escaped text stays unchanged");
}

#[test]
fn long_names_keep_both_ends_and_a_message_stays_on_a_screen() {
    let long = format!("begin{}end", "ä".repeat(1 << 20));
    let error = Error::new(format!("tensor `{long}` is missing in `{long}`, expected `w`"));
    let text = error.at(long.as_str()).hint(format!("use `{long}`")).to_string();
    assert!(text.chars().count() < 2000, "{}", text.chars().count());
    for words in
        ["tensor `beginä", "äend` is missing in `begin", "äend`, expected `w`\n  in: begin", "ä...ä", "use `begin"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(Error::new("`".repeat(1 << 20)).to_string().len() < 2100);
    assert!(shown(&"`a` ".repeat(1 << 18)).len() < 2100);
    let path = format!("/{}", "a/".repeat(110));
    assert_eq!(shown(&format!("`{path}` is there")), format!("`{path}` is there"));
    assert_eq!([3, 4].map(|count| shortened(&"ä".repeat(count), 3).into_owned()), ["äää", "ä...ä"]);
}

#[test]
fn texts_name_fields_as_the_front_end_does() {
    let flags: Names = |field, form| match (field, form) {
        (Field::Width, Form::Short) => "-W",
        (Field::Width, Form::Full) => "--width",
        _ => "?",
    };
    let error = Error::usage("width is 7")
        .for_field(Field::Width)
        .for_field(Field::Height)
        .hint(format!("`{} 64`", Field::Width));
    assert_eq!(error.field(), Some(Field::Width));
    assert_eq!(error.to_string(), "width is 7\n  in: width\n  hint: `width 64`");
    assert_eq!(error.shown_with(flags), "width is 7\n  in: --width\n  hint: `-W 64`");
    let elsewhere = Error::new("x").at("a.png").for_field(Field::Mask);
    assert_eq!((elsewhere.field(), elsewhere.to_string()), (Some(Field::Mask), "x\n  in: a.png".to_string()));
    let text = format!("{:#}, {}", Field::Width, Field::Size);
    assert_eq!([named(&text, flags), named(&text, KEYS)], ["--width, ?", "width, size"]);
    for text in ["", "width, `width`", "\u{2063}", "a\u{2064} b", "\u{2063}widths", "\u{2063}ä"] {
        assert_eq!(named(text, flags), text);
    }
    assert_eq!(named("\u{2064}\u{2063}width\u{2063}n", flags), "\u{2064}-W?");
    for field in Field::ALL {
        assert_eq!(Field::ALL.iter().filter(|other| other.key() == field.key()).count(), 1, "{field:?}");
        assert_eq!(named(&field.to_string(), KEYS), field.key());
    }
}

#[test]
fn every_part_of_an_error_is_one_line() {
    let error = Error::new("a\nb").at_path(Path::new("c\x1bd")).hint("e\rf");
    assert_eq!(error.to_string(), "a\\nb\n  in: c\\u{1b}d\n  hint: e\\rf");
}

use std::os::fd::{AsFd, OwnedFd};
use std::panic::catch_unwind;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::tcgetattr;
use vt100::Parser;

use super::ask::Quiet;
use super::*;

/// Serializes the tests, because the saved terminal settings are global.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

/// Opens a pseudo terminal: the user's side and the program's side.
fn pair() -> [OwnedFd; 2] {
    let outer = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo terminal");
    grantpt(&outer).expect("it is ours");
    unlockpt(&outer).expect("it is ours");
    let name = ptsname(&outer, Vec::new()).expect("it has a name");
    let inner = open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("it opens");
    [outer, inner]
}

fn mode(terminal: &OwnedFd) -> String {
    format!("{:?}", tcgetattr(terminal).expect("a terminal"))
}

fn answers(version: &str, kitty: bool, sixel: bool) -> Answers {
    let version = Some(version.to_string()).filter(|version| !version.is_empty());
    Answers { version, kitty, sixel, cell: None, is_complete: true }
}

#[test]
fn blocks_fill_the_columns_that_there_are() {
    let image = Rgb { width: 8, height: 4, bytes: vec![9; 8 * 4 * 3] };
    let shown = Terminal::with_protocol(Protocol::HalfBlocks).below(&image).unwrap();
    assert_eq!(shown.lines().next().unwrap().matches('▀').count(), USUAL_COLUMNS);
    let shown = Terminal::with_protocol(Protocol::HalfBlocks).with_columns(Some(4)).below(&image).unwrap();
    assert_eq!(shown.lines().next().unwrap().matches('▀').count(), 4);
}

#[test]
fn the_best_protocol_of_each_terminal_is_chosen() {
    for (version, kitty, sixel, expected) in [
        ("kitty(0.40.0)", true, false, Protocol::Kitty),
        ("ghostty 1.2.0", true, false, Protocol::Kitty),
        ("iTerm2 3.6.0", true, true, Protocol::Iterm2),
        ("WezTerm 20240203", false, true, Protocol::Iterm2),
        ("XTerm(390)", false, true, Protocol::Sixel),
        ("foot(1.20.0)", false, true, Protocol::Sixel),
        ("VTE(7600)", false, false, Protocol::HalfBlocks),
        ("", false, true, Protocol::Sixel),
        ("", false, false, Protocol::HalfBlocks),
    ] {
        assert_eq!(chosen(&answers(version, kitty, sixel), None), expected, "{version}");
    }
    let tmux = Some(Multiplexer::Tmux);
    assert_eq!(chosen(&answers("tmux 3.5", true, false), tmux), Protocol::HalfBlocks);
    assert_eq!(chosen(&answers("tmux 3.5", false, true), tmux), Protocol::Sixel);
}

fn gradient(width: usize, height: usize) -> Rgb {
    let bytes = (0..height).flat_map(|y| (0..width).flat_map(move |x| [x as u8, y as u8, 0])).collect();
    Rgb { width, height, bytes }
}

#[test]
fn the_cursor_is_below_the_image_on_every_terminal() {
    for (columns, rows) in [(40, 24), (80, 24), (200, 60)] {
        let room = Room { columns, rows: Some(rows - 1), cell: [8, 16] };
        let image = gradient(100, 80);
        let placed = room.place([100, 80], None);
        for protocol in [Protocol::Kitty, Protocol::Iterm2, Protocol::Sixel, Protocol::HalfBlocks] {
            let text = picture(&image, protocol, placed, Colors::All, false, 1).unwrap();
            for start in [0, 10, rows - 1] {
                let mut terminal = Parser::new(rows as u16, columns as u16, 0);
                terminal.process("\r\n".repeat(start).as_bytes());
                terminal.process(text.as_bytes());
                let expected = (start + placed.cells.rows).min(rows - 1);
                assert_eq!(terminal.screen().cursor_position(), (expected as u16, 0), "{protocol:?} {columns} {start}");
            }
        }
    }
}

#[test]
fn an_image_takes_the_place_of_the_last_one() {
    let mut terminal = Terminal::with_protocol(Protocol::HalfBlocks).with_columns(Some(10));
    let numbered = |mut terminal: Terminal| {
        let before = terminal.number;
        terminal.over(&gradient(20, 20)).unwrap();
        let first = terminal.number;
        terminal.over(&gradient(20, 20)).unwrap();
        (first - before, terminal.number - first)
    };
    assert_eq!(
        numbered(Terminal::with_protocol(Protocol::Kitty)),
        (1, 0),
        "kitty replaces an image of the same number"
    );
    let screen = |texts: &[String]| {
        let mut parser = Parser::new(24, 80, 0);
        parser.process(b"above\r\n");
        texts.iter().for_each(|text| parser.process(text.as_bytes()));
        (parser.screen().contents_formatted(), parser.screen().cursor_position())
    };
    let (large, small) = (gradient(40, 40), gradient(40, 16));
    let alone: Vec<_> = [&large, &small].map(|image| vec![terminal.below(image).unwrap()]).into();
    let mut texts = vec![terminal.below(&large).unwrap()];
    texts.push(terminal.over(&small).unwrap());
    assert_eq!(screen(&texts), screen(&alone[1]), "nothing is left of a larger image");
    texts.push(terminal.over(&large).unwrap());
    assert_eq!(screen(&texts), screen(&alone[0]));
    texts.push(terminal.over(&large).unwrap());
    assert_eq!(screen(&texts), screen(&alone[0]));
}

#[test]
fn large_images_are_scaled_down_before_they_are_sent() {
    let image = gradient(200, 100);
    let placed = Room { columns: 10, rows: None, cell: [8, 16] }.place([200, 100], None);
    let text = picture(&image, Protocol::Iterm2, placed, Colors::All, false, 1).unwrap();
    let data = text.split_once(":").and_then(|(_, rest)| rest.split_once('\x07')).unwrap().0;
    use base64::Engine;
    let png = base64::engine::general_purpose::STANDARD.decode(data).unwrap();
    let sent = flux::input::read_bytes(&png).unwrap();
    assert_eq!((sent.width, sent.height), (80, 40));
    // A small image is sent at its own size, and the terminal scales it up.
    let wide = Room { columns: 100, rows: None, cell: [8, 16] }.place([200, 100], Some(50));
    let text = picture(&image, Protocol::Iterm2, wide, Colors::All, false, 1).unwrap();
    assert!(text.contains("width=50;height=13;"), "{}", &text[..200]);
    let data = text.split_once(":").and_then(|(_, rest)| rest.split_once('\x07')).unwrap().0;
    let png = base64::engine::general_purpose::STANDARD.decode(data).unwrap();
    assert_eq!(flux::input::read_bytes(&png).unwrap(), image);
}

#[test]
fn tmux_is_handed_sequences_with_doubled_escapes() {
    assert_eq!(passed_on("\x1b_Gm=0;AA\x1b\\"), "\x1bPtmux;\x1b\x1b_Gm=0;AA\x1b\x1b\\\x1b\\");
    let placed = Room { columns: 80, rows: Some(20), cell: [8, 16] }.place([16, 32], None);
    let text = picture(&gradient(16, 32), Protocol::Kitty, placed, Colors::All, true, 5).unwrap();
    assert!(text.starts_with("\x1bPtmux;\x1b\x1b_Ga=T,U=1,f=100,i=5,c=2,r=2,q=2,m=0;"), "{text:?}");
    assert_eq!(text.matches('\u{10eeee}').count(), 4);
}

#[test]
fn a_terminal_is_as_it_was_after_a_panic() {
    let _alone = alone();
    let [_outer, inner] = pair();
    let before = mode(&inner);
    let work = || {
        let _quiet = Quiet::new(inner.as_fd()).expect("a terminal");
        assert_ne!(mode(&inner), before, "it is quiet");
        panic!("in between");
    };
    assert!(catch_unwind(std::panic::AssertUnwindSafe(work)).is_err());
    assert_eq!(mode(&inner), before);
}

#[test]
fn reading_ends_when_it_is_enough_when_the_time_is_over_and_at_a_key_of_a_signal() {
    let _alone = alone();
    let [outer, inner] = pair();
    let before = mode(&inner);
    let quiet = Quiet::new(inner.as_fd()).expect("a terminal");
    let read = |typed: &[u8], time: u64| {
        rustix::io::write(&outer, typed).expect("the terminal accepts input");
        let (mut bytes, start) = (Vec::new(), Instant::now());
        let until = start + Duration::from_millis(time);
        let signal = quiet.read(&mut bytes, until, |bytes| bytes.ends_with(b"c"));
        (bytes, signal, start.elapsed() < Duration::from_millis(time))
    };
    assert_eq!(read(b"\x1b[?1;2c", 10_000), (b"\x1b[?1;2c".to_vec(), None, true));
    assert_eq!(read(b"ab\r", 50), (b"ab\r".to_vec(), None, false));
    let (bytes, signal, is_early) = read(b"x\x03", 10_000);
    assert_eq!((bytes.as_slice(), signal, is_early), (b"x\x03".as_slice(), Some(rustix::process::Signal::INT), true));
    drop(quiet);
    assert_eq!(mode(&inner), before);
}

#[test]
fn a_terminal_that_is_closed_is_not_waited_for() {
    let _alone = alone();
    let [outer, inner] = pair();
    let quiet = Quiet::new(inner.as_fd()).expect("a terminal");
    drop(outer);
    let (mut bytes, start) = (Vec::new(), Instant::now());
    quiet.read(&mut bytes, start + Duration::from_secs(10), |_| false);
    assert!(bytes.is_empty() && start.elapsed() < Duration::from_secs(5));
}

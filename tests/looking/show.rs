//! `flux show` in terminals of all kinds. Each run must restore the terminal.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{folder, pixels, run, write};
use crate::program::flux;
use crate::pty::{Played, Terminal, answering, play};

/// The first bytes of an image.
const KITTY: &str = "\x1b_Ga=T,f=100,";
const ITERM2: &str = "\x1b]1337;File=inline=1;size=";
const SIXEL: &str = "\x1bP0;1;0q\"1;1;64;48#";
const BLOCK: &str = "▀";
/// The query for kitty's protocol.
const ASKS_KITTY: &str = "\x1b_Gi=31,";

/// Returns a `flux show` command, without the terminal that the tests run in.
fn show(folder: &Path, args: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = flux();
    for name in ["NO_COLOR", "TMUX", "SSH_TTY", "COLORTERM", "TERM_PROGRAM"] {
        command.env_remove(name);
    }
    command.current_dir(folder).arg("show").args(args).env("TERM", "xterm-256color");
    command.envs(variables.iter().copied());
    command
}

/// Shows an image in a terminal.
fn shown(variables: &[(&str, &str)], terminal: &Terminal<'_>) -> Played {
    let folder = folder();
    write(&folder.join("a.png"), &pixels(64, 48));
    let played = play(&mut show(&folder, &["a.png"], variables), terminal);
    assert!(played.mode_is_kept, "the terminal has the mode that it had");
    assert!(!played.shown.contains("^["), "nothing is echoed: {:?}", played.shown);
    played
}

/// Fails unless exactly this kind of image is shown.
#[track_caller]
fn expect(played: &Played, kind: &str) {
    assert_eq!(played.code, Some(0), "{}", played.stderr);
    for known in [KITTY, ITERM2, SIXEL, BLOCK] {
        assert_eq!(played.shown.contains(known), known == kind, "{known:?}: {:?}", played.shown);
    }
    assert_eq!((played.stderr.as_str(), played.left.as_slice()), ("", [].as_slice()));
}

#[test]
fn each_terminal_gets_what_it_says_that_it_knows() {
    let kitty = b"\x1bP>|kitty(0.40.0)\x1b\\\x1b_Gi=31;OK\x1b\\\x1b[6;20;10t\x1b[?62;52;c";
    let played = shown(&[("TERM", "xterm-kitty")], &answering(kitty));
    expect(&played, KITTY);
    // 64 x 48 pixels are 7 x 3 characters of 10 x 20.
    assert!(played.shown.contains("c=7,r=3,C=1,q=2"), "{:?}", played.shown);
    let iterm2 = b"\x1bP>|iTerm2 3.6.0\x1b\\\x1b[6;17;8t\x1b[?62;4c";
    let played = shown(&[("TERM_PROGRAM", "iTerm.app")], &answering(iterm2));
    expect(&played, ITERM2);
    assert!(played.shown.contains(";width=8;height=3;"), "{:?}", played.shown);
    expect(&shown(&[], &answering(b"\x1bP>|XTerm(390)\x1b\\\x1b[?64;1;2;4;6;9;15;22c")), SIXEL);
    // VS Code does not report its version.
    let code = [("TERM_PROGRAM", "vscode")];
    let played = shown(&code, &answering(b"\x1b[?1;2c"));
    expect(&played, BLOCK);
    assert!(played.shown.contains("\x1b[38;2;"), "with all colours: {:?}", played.shown);
    expect(&shown(&code, &answering(b"\x1b[?1;2;4c")), SIXEL);
    let played = shown(&[], &answering(b"\x1b[?1;2c"));
    expect(&played, BLOCK);
    assert!(played.shown.contains("\x1b[38;5;"), "with 256 colours: {:?}", played.shown);
}

#[test]
fn a_terminal_that_never_answers_is_not_waited_for_long() {
    let never = Terminal { answer: None, then: &|_, _| {} };
    let played = shown(&[], &never);
    expect(&played, BLOCK);
    // 0.2 s for answers and 0.4 s for late ones; the rest is for busy machines.
    assert!(played.time < Duration::from_secs(10), "{:?}", played.time);
}

#[test]
fn an_answer_that_comes_late_is_read_by_nobody_else() {
    let answer = b"\x1bP>|kitty(0.40.0)\x1b\\\x1b_Gi=31;OK\x1b\\\x1b[?62;c";
    let late = Terminal { answer: Some((answer, Duration::from_millis(350))), then: &|_, _| {} };
    let played = shown(&[], &late);
    expect(&played, BLOCK);
    // Over a network there is more time.
    expect(&shown(&[("SSH_TTY", "/dev/pts/7")], &late), KITTY);
}

#[test]
fn keys_and_signals_meanwhile_end_it_and_the_terminal_is_as_it_was() {
    use std::io::Write;
    let ssh = [("SSH_TTY", "/dev/pts/7")];
    let interrupts = Terminal {
        answer: None,
        then: &|typed, _| {
            let _ = typed.write_all(b"\x03");
        },
    };
    let played = shown(&ssh, &interrupts);
    assert_eq!((played.code, played.shown.contains(BLOCK)), (Some(130), false), "{}", played.stderr);
    // The second signal may come when the first has ended the program.
    let cases = [(["TERM", ""], [143, 143]), (["TERM", "TERM"], [143, 143]), (["HUP", "INT"], [129, 130])];
    for (signals, codes) in cases {
        let send = Terminal {
            answer: None,
            then: &|_, child| {
                for signal in signals.iter().filter(|signal| !signal.is_empty()) {
                    crate::program::signal(child, signal);
                }
            },
        };
        let played = shown(&ssh, &send);
        assert!(codes.map(Some).contains(&played.code), "{signals:?}: {:?}, {}", played.code, played.stderr);
        assert!(!played.shown.contains(BLOCK), "{signals:?}");
    }
}

#[test]
fn tmux_and_screen_get_what_stays_in_their_panes() {
    let tmux = [("TERM", "tmux-256color"), ("TMUX", "/tmp/tmux-0/default,1,0")];
    let played = shown(&tmux, &answering(b"\x1bP>|tmux 3.5a\x1b\\\x1b[?1;2c"));
    expect(&played, BLOCK);
    assert!(!played.shown.contains(ASKS_KITTY), "tmux would take it for a title");
    expect(&shown(&tmux, &answering(b"\x1bP>|tmux 3.5a\x1b\\\x1b[?1;2;4c")), SIXEL);
    let played = shown(&[("TERM", "screen.xterm-256color")], &answering(b"\x1b[?1;2;4c"));
    expect(&played, BLOCK);
    assert!(!played.shown.contains("\x1b[c") && !played.shown.contains(ASKS_KITTY), "nothing is asked");
}

#[test]
fn a_terminal_for_text_alone_is_neither_asked_nor_shown_anything() {
    for variables in [[("TERM", "dumb")], [("TERM", "")], [("NO_COLOR", "1")]] {
        let played = shown(&variables, &answering(b""));
        assert_eq!((played.code, played.shown.as_str()), (Some(2), ""), "{variables:?}");
        assert!(
            played.stderr.contains("only text") && played.stderr.contains("--protocol blocks"),
            "{}",
            played.stderr
        );
    }
}

#[test]
fn without_a_terminal_to_read_from_nothing_is_asked() {
    let folder = folder();
    write(&folder.join("a.png"), &pixels(64, 48));
    // A shell owns the terminal, and the program reads from a file.
    let mut command = Command::new("sh");
    let line = format!("'{}' show a.png < /dev/null", flux().get_program().to_string_lossy());
    command.current_dir(&folder).args(["-c", &line]).env("TERM", "xterm-256color");
    for name in ["NO_COLOR", "TMUX", "SSH_TTY"] {
        command.env_remove(name);
    }
    let played = play(&mut command, &answering(b""));
    expect(&played, BLOCK);
    assert!(!played.shown.contains("\x1b[c"), "{:?}", played.shown);
}

#[test]
fn without_a_terminal_it_fails_unless_a_protocol_is_named() {
    let folder = folder();
    write(&folder.join("a.png"), &pixels(64, 48));
    run(&folder, &["show", "a.png"]).fails(2, &["standard output is not a terminal", "--protocol blocks"]);
    for (protocol, kind) in [("kitty", KITTY), ("iterm2", ITERM2), ("sixel", SIXEL), ("blocks", BLOCK)] {
        let shown = run(&folder, &["show", "a.png", "--protocol", protocol]).succeeds().stdout;
        assert!(shown.contains(kind) && !shown.contains("\x1b[c"), "{protocol}: {shown:?}");
    }
    let wide = |columns: &str| {
        let args = ["show", "a.png", "--protocol", "blocks", "--width", columns];
        let shown = run(&folder, &args).succeeds().stdout;
        (shown.matches(BLOCK).count(), shown.lines().count())
    };
    assert_eq!((wide("8"), wide("4"), wide("16")), ((8 * 3, 3), (4 * 2, 2), (16 * 6, 6)));
    run(&folder, &["show", "a.png", "--width", "0"]).fails(2, &["--width", "from 1 to 1000"]);
    run(&folder, &["show", "none.png", "--protocol", "sixel"]).fails(1, &["none.png"]);
    run(&folder, &["show"]).fails(2, &["FILE"]);
}

#[test]
fn several_images_have_their_names() {
    let folder = folder();
    for name in ["a.png", "b\x1b[2Jc.png"] {
        write(&folder.join(name), &pixels(16, 16));
    }
    let shown = run(&folder, &["show", "a.png", "b\x1b[2Jc.png", "--protocol", "blocks"]).succeeds().stdout;
    assert!(shown.starts_with("a.png\n") && shown.contains("b\\u{1b}[2Jc.png\n"), "{shown:?}");
}

/// tmux itself, if it is installed.
#[test]
fn in_tmux_the_terminal_is_as_it_was_and_blocks_are_on_the_screen() {
    let folder = folder();
    write(&folder.join("a.png"), &pixels(64, 48));
    let socket = folder.join("socket");
    let tmux = |args: &[&str]| {
        let mut command = Command::new("tmux");
        command.env_remove("TMUX").env_remove("NO_COLOR").env("TERM", "xterm-256color").current_dir(&folder);
        command.arg("-S").arg(&socket).args(["-f", "/dev/null"]).args(args).output()
    };
    if tmux(&["-V"]).is_err() {
        eprintln!("skipped: no tmux");
        return;
    }
    let line = format!(
        "stty -g > before; '{}' show a.png; stty -g > after; touch done; sleep 60",
        flux().get_program().to_string_lossy()
    );
    let begun = tmux(&["new-session", "-d", "-x", "80", "-y", "24", "sh", "-c", &line]).expect("it is there");
    if !begun.status.success() {
        eprintln!("skipped: tmux does not start: {}", String::from_utf8_lossy(&begun.stderr));
        return;
    }
    let there = |name: &str| folder.join(name).exists();
    for _ in 0..600 {
        if there("done") {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let screen = tmux(&["capture-pane", "-p"]).expect("it is there").stdout;
    let title = tmux(&["display-message", "-p", "#{pane_title}"]).expect("it is there").stdout;
    let _ = tmux(&["kill-server"]);
    assert!(there("done"), "it hangs");
    let text = |name: &str| std::fs::read_to_string(folder.join(name)).expect("a mode");
    assert_eq!(text("before"), text("after"));
    let screen = String::from_utf8_lossy(&screen);
    // 64 x 48 pixels are 8 x 3 characters, or fewer if tmux reports larger ones; and nothing else.
    assert!(screen.contains(BLOCK) && screen.trim().chars().all(|c| c == '▀' || c == '\n'), "{screen}");
    assert!(!String::from_utf8_lossy(&title).contains("i=31"), "{title:?}");
}

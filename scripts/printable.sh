# Sourced by the scripts: `printable TEXT` prints untrusted text with control characters and bidirectional formatting
# escaped, as \u{1b}. A terminal would obey the former, and the latter can disguise text.
# shellcheck shell=bash

escapes=
# C0, delete and C1, then bidirectional formatting and the two line separators. sed never sees the line feed.
for code in {1..9} {11..31} {127..159} 1564 8206 8207 {8232..8238} {8294..8297}; do
    if [[ $code -lt 128 ]]; then
        printf -v bytes '\\x%02x' "$code"
    elif [[ $code -lt 2048 ]]; then
        printf -v bytes '\\x%02x\\x%02x' $((0xc0 | code >> 6)) $((0x80 | code & 0x3f))
    else
        printf -v bytes '\\x%02x\\x%02x\\x%02x' $((0xe0 | code >> 12)) $((0x80 | code >> 6 & 0x3f)) $((0x80 | code & 0x3f))
    fi
    printf -v escape 's/%b/\\\\u{%x}/g\n' "$bytes" "$code"
    escapes+=$escape
done

printable() { # TEXT
    local line_end=$'\n' written='\u{a}'
    LC_ALL=C sed "$escapes" <<<"${1//"$line_end"/$written}"
}

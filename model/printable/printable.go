// Package printable makes text of strangers safe to print: names from a table, an API server or another node could hold
// what moves a terminal's cursor or reverses the direction of text.
//
// It does not judge whether a text is right.
package printable

import (
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Text returns the text with escapes, such as \x1b, in place of every character that does not print: control
// characters, marks that reverse the direction of text, line breaks, and bytes that are no UTF-8.
func Text(s string) string {
	return escape(s, func(b []byte, r rune, raw string) []byte {
		if r == utf8.RuneError && len(raw) == 1 {
			return fmt.Appendf(b, `\x%02x`, raw[0])
		}
		quoted := strconv.QuoteRuneToASCII(r)
		return append(b, quoted[1:len(quoted)-1]...)
	})
}

// JSON puts JSON's escape in place of each character of a JSON text that does not print: encoding/json leaves some that
// terminals obey as they are. A line break stays: within strings JSON has none.
func JSON(text string) string {
	return escape(text, func(b []byte, r rune, raw string) []byte {
		if r == '\n' {
			return append(b, raw...)
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			b = fmt.Appendf(b, `\u%04x`, unit)
		}
		return b
	})
}

// escape replaces the characters that do not print. with appends the replacement of one, whose bytes are raw.
func escape(s string, with func(b []byte, r rune, raw string) []byte) string {
	var b []byte
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		if invalid := r == utf8.RuneError && size == 1; invalid || !strconv.IsPrint(r) {
			b = with(b, r, s[:size])
		} else {
			b = append(b, s[:size]...)
		}
		s = s[size:]
	}
	return string(b)
}

package result

import (
	"fmt"
	"strings"
	"time"
)

// amount writes a figure with two significant digits, and with whole numbers from
// 100 on: "0.19 s", "135 MB". Times get the unit that people use for them.
func amount(v float64, unit string) string {
	seconds, isTime := inSeconds(v, unit)
	if !isTime {
		return digits(v) + " " + unit
	}
	const minute = 60
	switch whole := int(seconds + 0.5); {
	case seconds >= 2*minute && whole%minute == 0:
		return fmt.Sprintf("%d minutes", whole/minute)
	case seconds >= 0.0995:
		return digits(seconds) + " s"
	case seconds >= 0.000_995:
		return digits(seconds*1e3) + " ms"
	}
	return digits(seconds*1e6) + " µs"
}

// inSeconds converts a time; it says false for other units.
func inSeconds(v float64, unit string) (float64, bool) {
	switch unit {
	case "s":
		return v, true
	case "ms":
		return v / 1e3, true
	case "us":
		return v / 1e6, true
	}
	return v, false
}

func digits(v float64) string {
	if v >= 99.5 {
		return Count(int(v + 0.5))
	}
	return fmt.Sprintf("%.2g", v)
}

// reason says why a cell has no figure, in few words. A report writes times as Go
// does ("3m0s").
func reason(c *Cell) string {
	const most = 60 // characters: more would not fit beside a plot
	text := c.Failed
	if text == "" {
		text, _, _ = strings.Cut(c.Note, ";")
	}
	if text == "" || len(text) > most {
		return "not measured"
	}
	words := strings.Fields(text)
	for i, w := range words {
		if d, err := time.ParseDuration(w); err == nil {
			words[i] = longDuration(d)
		}
	}
	return strings.Join(words, " ")
}

func longDuration(d time.Duration) string {
	switch minutes := int(d / time.Minute); {
	case d%time.Minute != 0 || d == 0:
		return fmt.Sprintf("%g seconds", d.Seconds())
	case minutes == 1:
		return "1 minute"
	default:
		return fmt.Sprintf("%d minutes", minutes)
	}
}

// textWidth estimates how wide a text is, in pixels. Readers have various fonts,
// so it is an estimate for the wider ones of the usual kind (Arial, Helvetica).
func textWidth(text string, size float64, bold bool) float64 {
	em := 0.0
	for _, r := range text {
		switch {
		case strings.ContainsRune("ijl|'.,:;!I()[] ft", r):
			em += 0.31
		case strings.ContainsRune("mwMW%@", r):
			em += 0.89
		case r >= 'A' && r <= 'Z':
			em += 0.72
		default:
			em += 0.57
		}
	}
	if bold {
		em *= 1.06
	}
	return em * size
}

// wrap breaks a text into as few lines as fit into a width in pixels, and makes these
// lines about equally long. A single word may be wider.
func wrap(text string, size float64, bold bool, width float64) []string {
	const step = 4
	lines := fill(text, size, bold, width)
	for narrow := width - step; narrow > 0; narrow -= step {
		narrower := fill(text, size, bold, narrow)
		if len(narrower) > len(lines) {
			break
		}
		lines = narrower
	}
	return lines
}

// fill puts as many words into each line as fit.
func fill(text string, size float64, bold bool, width float64) []string {
	var lines []string
	for _, word := range strings.Fields(text) {
		last := len(lines) - 1
		if last >= 0 && textWidth(lines[last]+" "+word, size, bold) <= width {
			lines[last] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}

package result

import "strings"

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

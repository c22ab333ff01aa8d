package result

import (
	"fmt"
	"math"
	"testing"
)

// TestContrast: text and lines can be told from the background, in both themes, by
// the ratio that the Web Content Accessibility Guidelines (2.1, AA) ask for.
func TestContrast(t *testing.T) {
	const enough = 4.5
	for name, shown := range map[string]theme{"light": lightTheme(), "dark": darkTheme()} {
		colours := map[string]string{"text": shown.text, "faint": shown.faint, "other": shown.other}
		for backend, c := range shown.backends {
			colours[backend] = c
		}
		for what, c := range colours {
			if got := contrast(t, c, shown.background); got < enough {
				t.Errorf("%s, %s: contrast %.2f, want %v", name, what, got, enough)
			}
		}
	}
}

func contrast(t *testing.T, a, b string) float64 {
	t.Helper()
	light, dark := luminance(t, a)+0.05, luminance(t, b)+0.05
	return max(light/dark, dark/light)
}

func luminance(t *testing.T, colour string) float64 {
	t.Helper()
	var parts [3]int
	if _, err := fmt.Sscanf(colour, "#%02x%02x%02x", &parts[0], &parts[1], &parts[2]); err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		c := float64(parts[i]) / 255
		if c <= 0.04045 {
			c /= 12.92
		} else {
			c = math.Pow((c+0.055)/1.055, 2.4)
		}
		sum += weight * c
	}
	return sum
}

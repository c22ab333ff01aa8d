package result

// area is a rectangle, in pixels from the top left.
type area struct {
	left, top, right, bottom float64
}

// textArea is where a line of text is, whose baseline is at y.
func textArea(x, y float64, anchor, text string, size float64, bold bool) area {
	const above, below = 0.8, 0.25 // of the size: capitals and the tails of letters
	wide := textWidth(text, size, bold)
	switch anchor {
	case "middle":
		x -= wide / 2
	case "end":
		x -= wide
	}
	return area{left: x, top: y - above*size, right: x + wide, bottom: y + below*size}
}

func (a area) meets(b area) bool {
	return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom
}

// grown is larger by so much on each side.
func (a area) grown(by float64) area {
	return area{left: a.left - by, top: a.top - by, right: a.right + by, bottom: a.bottom + by}
}

package chart

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

func (a area) within(b area) bool {
	return a.left >= b.left && a.right <= b.right && a.top >= b.top && a.bottom <= b.bottom
}

// grown is larger by so much on each side.
func (a area) grown(by float64) area {
	return area{left: a.left - by, top: a.top - by, right: a.right + by, bottom: a.bottom + by}
}

// segment is a piece of a line.
type segment struct {
	x1, y1, x2, y2 float64
}

// crosses says whether any of the segment is in the area: it cuts off what is left
// of it, right of it, above and below, and looks whether anything remains.
func (s segment) crosses(a area) bool {
	from, to := 0.0, 1.0 // of the way from the first end to the second
	for _, side := range []struct{ start, move, low, high float64 }{
		{s.x1, s.x2 - s.x1, a.left, a.right},
		{s.y1, s.y2 - s.y1, a.top, a.bottom},
	} {
		if side.move == 0 {
			if side.start < side.low || side.start > side.high {
				return false
			}
			continue
		}
		enter, leave := (side.low-side.start)/side.move, (side.high-side.start)/side.move
		from, to = max(from, min(enter, leave)), min(to, max(enter, leave))
	}
	return from <= to
}

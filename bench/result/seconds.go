package result

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// ReadSeconds reads a table with the columns clients, second, requests, slow and failed, and returns the share of slow
// and failed requests in each second from 1 on, of the clients whose name begins with a text.
func ReadSeconds(r io.Reader, clients string) ([]float64, error) {
	table := csv.NewReader(r)
	table.Comment = '#'
	rows, err := table.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("read the table: %w", err)
	}
	var all, bad []int
	for i, row := range rows {
		if i == 0 || !strings.HasPrefix(row[0], clients) {
			continue
		}
		var numbers [4]int
		for j := range numbers {
			if numbers[j], err = strconv.Atoi(row[min(j+1, len(row)-1)]); err != nil {
				return nil, fmt.Errorf("row %d of the table: %w", i+1, err)
			}
		}
		second, requests, failures := numbers[0], numbers[1], numbers[2]+numbers[3]
		for len(all) < second {
			all, bad = append(all, 0), append(bad, 0)
		}
		if second > 0 {
			all[second-1] += requests
			bad[second-1] += failures
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("the table has no row of %q", clients)
	}
	shares := make([]float64, len(all))
	for i := range all {
		shares[i] = float64(bad[i]) / float64(max(1, all[i]))
	}
	return shares, nil
}

// Seconds is a line of a picture of shares over time.
type Seconds struct {
	// Backend chooses the colour: the names of package result, or another text. Name stands behind the line.
	Backend, Name string
	// Shares are from 0 to 1, one for each second from the first on.
	Shares []float64
	// Told is what the picture's text says of the line; empty for the share of all connections.
	Told string
}

// DrawSeconds draws shares over time, and returns an SVG file. Equal arguments make equal files.
func DrawSeconds(title, about, axis string, lines []Seconds) []byte {
	const everySecond, everyShare = 15, 0.25
	s := &svg{}
	y := s.paragraph(margin, "title text", title, titleSize, titleLine, true)
	top := s.paragraph(y+4, "faint", about, textSize, textLine, false) + 32
	bottom := top + plotHeight
	seconds := 1
	for _, l := range lines {
		seconds = max(seconds, len(l.Shares))
	}
	at := func(second int, share float64) (x, y float64) {
		return plotLeft + (plotRight-plotLeft)*float64(second)/float64(seconds), bottom - plotHeight*share
	}
	for share := 0.0; share <= 1; share += everyShare {
		_, y := at(0, share)
		s.line("grid", plotLeft, y, plotRight, y)
		s.text(plotLeft-10, y+6, "end", "faint", fmt.Sprintf("%.0f %%", 100*share))
	}
	for second := 0; second <= seconds; second += everySecond {
		x, _ := at(second, 0)
		s.text(x, bottom+textLine, "middle", "faint", fmt.Sprint(second))
	}
	var backends, told []string
	for i, l := range lines {
		backends = append(backends, l.Backend)
		var places []float64
		sum := 0.0
		for j, share := range l.Shares {
			x, y := at(j, share)
			x2, _ := at(j+1, share)
			places, sum = append(places, x, y, x2, y), sum+share
		}
		s.line(fmt.Sprintf("series line-%d", i), places...)
		text := l.Told
		if text == "" {
			text = fmt.Sprintf("%.0f %% of all connections", 100*sum/float64(max(1, len(l.Shares))))
		}
		told = append(told, l.Name+": "+text+".")
	}
	for i, l := range lines {
		y := top + float64(i)*3*textLine
		for _, words := range wrap(l.Name, textSize, true, width-labelLeft-margin) {
			y += textLine
			s.text(labelLeft, y, "start", fmt.Sprintf("name fill-%d", i), words)
		}
	}
	s.text(plotLeft, bottom+2*textLine+4, "start", "faint", axis)
	return s.document(bottom+2*textLine+16+margin, title, strings.Join(told, " "), backends)
}

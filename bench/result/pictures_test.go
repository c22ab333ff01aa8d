package result

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// everyClaim is a report of invented figures that has all that pictures can show: lines
// that end early, limits, reasons, and points that are close together.
func everyClaim() *Report {
	r := &Report{Facts: Facts{Versions: map[string]string{"kube-proxy": "v1.37.2"}}}
	put := func(c Cell) *Cell {
		r.Put(c)
		return r.Cell(c.Question, c.Backend, c.Size)
	}
	control := func(question, unit, key string, ours, theirs float64) {
		for i, services := range []int{1_000, 10_000, 30_000} {
			c := Cell{Question: question, Size: Count(services) + "x10", Services: services, Endpoints: 10 * services, Unit: unit}
			grown := float64(i + 1)
			c.Backend, c.Values = NFTProxy, map[string]float64{key: ours * grown}
			put(c)
			if i == 2 {
				continue
			}
			c.Backend, c.Values = KubeProxyNFTables, map[string]float64{key: theirs * grown * grown}
			put(c)
			c.Backend, c.Values = KubeProxyLegacy, map[string]float64{key: theirs * grown * 0.8}
			put(c)
			c.Backend = KubeProxyIPTables
			if iptables := put(c); i == 1 {
				iptables.Over, iptables.Values = true, map[string]float64{key: 180}
			}
		}
		// Clusters of another shape are in no picture.
		put(Cell{Question: question, Backend: NFTProxy, Size: "44,000x1", Services: 44_000, Endpoints: 44_000, Unit: unit, Values: map[string]float64{key: 7}})
	}
	control(FirstProgram, "s", Value, 0.02, 0.3)
	put(Cell{Question: FirstProgram, Backend: BareNetlink, Size: "10,000x10", Services: 10_000, Endpoints: 100_000, Unit: "s", Values: map[string]float64{Value: 0.039}})
	control(Restart, "s", Value, 0.02, 0.3)
	control(ChangeSeen, "ms", P50, 3.6, 200)
	control(Churn1000, "ms", P99, 20, 2_400)
	r.Cell(Churn1000, KubeProxyNFTables, "10,000x10").Over = true
	control(PeakMemory, "MB", Value, 50, 140)
	for _, rate := range NodeRates() {
		c := Cell{Question: NodeCPU(rate), Size: Usual, Services: 10_000, Endpoints: 100_000, Unit: "s"}
		c.Backend, c.Values = NFTProxy, map[string]float64{Value: 0.1 + 0.02*float64(rate)}
		put(c)
		c.Backend, c.Values = KubeProxyNFTables, map[string]float64{Value: 7 + 0.05*float64(rate)}
		put(c)
		c.Backend, c.Values = ChangeFloor, map[string]float64{Value: 0.04 + 0.009*float64(rate)}
		put(c)
		// Another size is in no picture.
		c.Backend, c.Size, c.Services, c.Endpoints = NFTProxy, "44,000x1", 44_000, 44_000
		put(c)
	}
	for _, services := range []int{1, 1_000, 10_000, 30_000} {
		c := Cell{Question: ConnectionSetup + ", pod to cluster IP, last service", Size: Count(services), Services: services, Unit: "us"}
		c.Backend, c.Values = NFTProxy, map[string]float64{P50: 22.8}
		put(c)
		c.Backend, c.Values = KubeProxyNFTables, map[string]float64{P50: 23.4}
		nftables := put(c)
		c.Backend, c.Values = KubeProxyIPTables, map[string]float64{P50: 25 + float64(services)/75}
		iptables := put(c)
		if services > 10_000 {
			nftables.Fail(errors.New("no first program within 5m0s"))
			iptables.Fail(errors.New("no first program within 5m0s"))
		}
	}
	return r
}

// oneSize is a report as a quick run makes it, where kube-proxy had no program.
func oneSize() *Report {
	r := &Report{}
	c := Cell{Question: FirstProgram, Backend: NFTProxy, Size: Small, Services: 1_000, Endpoints: 10_000, Unit: "s", Values: map[string]float64{Value: 0.02}}
	r.Put(c)
	c.Backend = KubeProxyNFTables
	c.NotBegun(errors.New("no first program within 1m0s; that is <much>"))
	r.Put(c)
	return r
}

// TestPictures: equal reports make equal files, byte by byte those in testdata.
func TestPictures(t *testing.T) {
	for folder, r := range map[string]*Report{"every-claim": everyClaim(), "one-size": oneSize()} {
		comparePictures(t, filepath.Join("testdata", folder), r, *update)
	}
}

// TestPublished: the pictures in docs/bench and docs/bench/node are those of the reports
// there, and there are no others. People who do not see a picture have its title.
func TestPublished(t *testing.T) {
	docs := filepath.Join("..", "..", "docs", "bench")
	page, err := os.ReadFile(filepath.Join(docs, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for folder, shown := range map[string]func(claim) bool{
		"":     func(c claim) bool { return !c.rates },
		"node": func(c claim) bool { return c.rates },
	} {
		dir := filepath.Join(docs, folder)
		r, err := Read(filepath.Join(dir, "report.json"))
		if err != nil {
			t.Fatal(err)
		}
		comparePictures(t, dir, r, false)
		for _, c := range claims() {
			if !shown(c) {
				continue
			}
			if want := fmt.Sprintf("![%s](%s)", newPicture(c, r).title(), filepath.Join(folder, c.file)); !bytes.Contains(page, []byte(want)) {
				t.Errorf("docs/bench/README.md lacks %s", want)
			}
		}
	}
}

func comparePictures(t *testing.T, dir string, r *Report, write bool) {
	t.Helper()
	made := filepath.Join(t.TempDir(), "new")
	if write {
		made = dir
	}
	files, err := Pictures(made, r)
	if err != nil {
		t.Fatal(err)
	}
	there, err := filepath.Glob(filepath.Join(dir, "*.svg"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range there {
		there[i] = filepath.Base(there[i])
	}
	if diff := cmp.Diff(there, slices.Sorted(slices.Values(files))); diff != "" {
		t.Errorf("%s: pictures (-there +of the report):\n%s", dir, diff)
	}
	for _, name := range files {
		want, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		got, err := os.ReadFile(filepath.Join(made, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(want, got) {
			t.Errorf("%s is another picture (-there +of the report); -update, or \"bench show\", makes it anew:\n%s", filepath.Join(dir, name), cmp.Diff(string(want), string(got)))
		}
		checkReadable(t, name, got)
	}
}

// element is what checkReadable needs of an element of a picture.
type element struct {
	Class  string  `xml:"class,attr"`
	X      float64 `xml:"x,attr"`
	Y      float64 `xml:"y,attr"`
	Anchor string  `xml:"text-anchor,attr"`
	Text   string  `xml:",chardata"`
}

// checkReadable: a picture is well-formed and says in words what it shows, and its
// texts are apart from each other, within the frame, and large enough for a phone.
func checkReadable(t *testing.T, name string, file []byte) {
	t.Helper()
	var image struct {
		Box         string    `xml:"viewBox,attr"`
		Role        string    `xml:"role,attr"`
		Labelled    string    `xml:"aria-labelledby,attr"`
		Title       string    `xml:"title"`
		Description string    `xml:"desc"`
		Texts       []element `xml:"text"`
	}
	if err := xml.NewDecoder(bytes.NewReader(file)).Decode(&image); err != nil && !errors.Is(err, io.EOF) {
		t.Fatalf("%s: %v", name, err)
	}
	if image.Role != "img" || image.Labelled != "title description" || image.Title == "" || image.Description == "" {
		t.Errorf("%s: role %q, labelled by %q, title %q, description %q", name, image.Role, image.Labelled, image.Title, image.Description)
	}
	box := strings.Fields(image.Box)
	if len(box) != 4 {
		t.Fatalf("%s: viewBox %q", name, image.Box)
	}
	var size [2]float64
	for i := range size {
		var err error
		if size[i], err = strconv.ParseFloat(box[2+i], 64); err != nil {
			t.Fatal(err)
		}
	}
	const widest, smallest = 640, 16
	if size[0] > widest || textSize < smallest {
		t.Errorf("%s: %v wide, text of %v: too small on a phone", name, size[0], textSize)
	}
	frame := area{right: size[0], bottom: size[1]}
	for i, e := range image.Texts {
		a := e.area()
		if !a.within(frame) {
			t.Errorf("%s: %q is outside", name, e.Text)
		}
		for _, other := range image.Texts[:i] {
			if a.meets(other.area()) {
				t.Errorf("%s: %q is on %q", name, e.Text, other.Text)
			}
		}
	}
}

func (e *element) area() area {
	words := strings.Fields(e.Class)
	bold, size := slices.Contains(words, "title") || slices.Contains(words, "name"), textSize
	if slices.Contains(words, "title") {
		size = titleSize
	}
	return textArea(e.X, e.Y, e.Anchor, e.Text, size, bold)
}

func (a area) within(b area) bool {
	return a.left >= b.left && a.right <= b.right && a.top >= b.top && a.bottom <= b.bottom
}

// TestNothingToShow: a claim without figures has no picture.
func TestNothingToShow(t *testing.T) {
	r := &Report{Cells: []Cell{{Question: FirstProgram, Backend: NFTProxy, Size: "1x1", Failed: "no kernel"}}}
	files, err := Pictures(t.TempDir(), r)
	if err != nil || len(files) > 0 {
		t.Errorf("files %v, error %v", files, err)
	}
}

package watch

import "testing"

func TestParseCIDR(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"10.0.0.0/8", "10.0.0.0/8"},
		{"010.000.000.000/08", "10.0.0.0/8"},
		{"192.168.0.77/24", "192.168.0.0/24"},
		{"0.0.0.0/0", "0.0.0.0/0"},
		{"10.0.0.1/32", "10.0.0.1/32"},
		{"::/0", "::/0"},
		{"2001:DB8::77/64", "2001:db8::/64"},
		{"::ffff:10.0.0.0/104", "10.0.0.0/8"},
		{"::ffff:10.0.0.0/96", "0.0.0.0/0"},
		{"::ffff:10.0.0.0/80", "::/80"},
		{"", ""},
		{"10.0.0.0", ""},
		{"10.0.0/8", ""},
		{"10.0.0.0/33", ""},
		{"10.0.0.0/-1", ""},
		{"10.0.0.0/8/8", ""},
		{" 10.0.0.0/8", ""},
		{"fe80::%eth0/64", ""},
	} {
		got, err := parseCIDR(test.text)
		switch {
		case (err == nil) != (test.want != ""):
			t.Errorf("%q: error %v", test.text, err)
		case err == nil && got.String() != test.want:
			t.Errorf("%q: %s, want %s", test.text, got, test.want)
		case err != nil && got.IsValid():
			t.Errorf("%q: %s beside the error %v", test.text, got, err)
		}
	}
}

func TestParseAddr(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"10.180.00.001", "10.180.0.1"},
		{"::ffff:10.0.0.1", "10.0.0.1"},
		{"2001:DB8:0::1", "2001:db8::1"},
		{"fe80::1%eth0", ""},
		{"0.0.0.0", ""},
		{"::", ""},
		{"::ffff:0.0.0.0", ""},
		{"10.0.0.256", ""},
		{"10.0.0.1/32", ""},
		{" 10.0.0.1", ""},
		{"", ""},
	} {
		got, err := parseAddr(test.text)
		switch {
		case (err == nil) != (test.want != ""):
			t.Errorf("%q: error %v", test.text, err)
		case err == nil && got.String() != test.want:
			t.Errorf("%q: %s, want %s", test.text, got, test.want)
		}
	}
}

"""What differs between the Wikipedias of mLUKE's 24 languages: namespaces, redirects, the letters of a link's trail."""

import json
from pathlib import Path

import pytest

from luke.corpus import wikitext
from luke.corpus.wikitext import Site, parse_wikitext

# Language: names of files and categories, a redirect's first word, letters that belong to a link before them and what
# does not, as MediaWiki's language files have them.
LANGUAGES = {
    "ar": ("ملف", "تصنيف", "#تحويل", "ات", "1"),
    "bn": ("চিত্র", "বিষয়শ্রেণী", "#পুনর্নির্দেশ", "s", "টি"),
    "de": ("Datei", "Kategorie", "#WEITERLEITUNG", "größe", "é"),
    "el": ("Αρχείο", "Κατηγορία", "#ΑΝΑΚΑΤΕΥΘΥΝΣΗ", "ών", "1"),
    "en": ("File", "Category", "#REDIRECT", "s", "é"),
    "es": ("Archivo", "Categoría", "#REDIRECCIÓN", "ñas", "ü"),
    "fi": ("Tiedosto", "Luokka", "#OHJAUS", "ssä", "å"),
    "fr": ("Fichier", "Catégorie", "#REDIRECTION", "îtes", "ñ"),
    "hi": ("चित्र", "श्रेणी", "#अनुप्रेषित", "ों", "1"),
    "id": ("Berkas", "Kategori", "#ALIH", "nya", "é"),
    "it": ("File", "Categoria", "#RINVIA", "ità", "ñ"),
    "ja": ("ファイル", "カテゴリ", "#転送", "s", "の"),
    "ko": ("파일", "분류", "#넘겨주기", "s", "은"),
    "nl": ("Bestand", "Categorie", "#DOORVERWIJZING", "ën", "ñ"),
    "pl": ("Plik", "Kategoria", "#PATRZ", "ów", "é"),
    "pt": ("Ficheiro", "Categoria", "#REDIRECIONAMENTO", "ões", "ñ"),
    "ru": ("Файл", "Категория", "#перенаправление", "ами", "1"),
    "sv": ("Fil", "Kategori", "#OMDIRIGERING", "årna", "ñ"),
    "sw": ("Picha", "Jamii", "#REDIRECT", "ni", "é"),
    "te": ("దస్త్రం", "వర్గం", "#దారిమార్పు", "లు", "1"),
    "th": ("ไฟล์", "หมวดหมู่", "#เปลี่ยนทาง", "s", "ที่"),
    "tr": ("Dosya", "Kategori", "#YÖNLENDİRME", "ları", "é"),
    "vi": ("Tập tin", "Thể loại", "#đổi", "ê", "ñ"),
    "zh": ("文件", "分类", "#重定向", "", "s"),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_page_of_a_language(language: str) -> None:
    """Without a siteinfo, as in dumps of HTML, and with a canonical English name beside the wiki's own."""
    file, category, redirect, trail, other = LANGUAGES[language]
    site = Site(language)
    page = (
        f"[[{file}:a.jpg|thumb|[[x]] y]]'''[[Berlin]]{trail}''' [[Berlin]]{other} [[:{category}:b|c]].\n"
        f"[[File:d.jpg]][[{category}:e]][[Category:f]]"
    )
    (paragraph,) = parse_wikitext(page, site)
    assert paragraph.text == f"Berlin{trail} Berlin{other} c."
    anchors = [(link.title, paragraph.text[link.start : link.end]) for link in paragraph.links]
    assert anchors == [("Berlin", f"Berlin{trail}"), ("Berlin", "Berlin")]
    assert site.redirect_target(f"{redirect} [[{category} x#y|z]]\n[[{category}:w]]") == f"{category} x#y"
    assert site.redirect_target(f"{redirect}:[[a]]") == site.redirect_target("#redirect [[a]]") == "a"
    assert site.redirect_target(f"x {redirect} [[a]]") is None


def test_all_of_them_are_there() -> None:
    data = json.loads(Path(wikitext.__file__).with_name("wikipedia_sites.json").read_text(encoding="utf-8"))
    assert len(LANGUAGES) == 24
    assert set(LANGUAGES) - {"en"} == set(data["namespaces"])
    assert set(LANGUAGES) - {"en", "sw"} == set(data["redirect_words"])
